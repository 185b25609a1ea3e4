package hami

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	// callTimeout bounds what one round asks of the API server.
	roundTimeout = 10 * time.Second
	// lastTimeout bounds the last write of a process that ends.
	closeTimeout = 3 * time.Second
	// firstRetry and lastRetry bound the pause after a round that failed.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// glance is how often State is looked at without a word from anybody.
	pollInterval = 5 * time.Second
)

// Bridge is a node's side of the protocol. One Run at a time.
type Plugin struct {
	Options
	changed notify.Signal
	// phases are to be told to pods.
	phases chan phase

	// What follows is Run's alone.
	lock  lockView
	wrote time.Time

	// mu guards told.
	mu      sync.Mutex
	written map[types.UID]string
}

// New returns a Bridge that does nothing yet.
func New(o Options) *Plugin {
	return &Plugin{
		Options: o, changed: notify.New(),
		phases: make(chan phase, maxPhases), written: map[types.UID]string{},
	}
}

// Wake tells that State may differ. It never waits.
func (b *Plugin) Notify() {
	b.changed.Notify()
}

// Run follows the Node and its pods until ctx ends, and then shows no card as
// healthy, within three seconds. It returns nil: what fails is tried again.
func (b *Plugin) Run(ctx context.Context) error {
	var telling sync.WaitGroup
	defer telling.Wait()
	telling.Go(func() { b.writePhases(ctx) })
	pause := firstRetry
	for ctx.Err() == nil {
		// The channels first: what changes during the round is another round's.
		_, nodeChanged := b.Watched.Node()
		_, podsChanged, _ := b.Watched.Pods()
		again, err := b.round(ctx)
		if err != nil && ctx.Err() == nil {
			b.Log.WarnContext(ctx, "HAMi is not told yet", "err", err, "retry_in", pause)
			again, pause = pause, min(2*pause, lastRetry)
		} else {
			pause = firstRetry
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-nodeChanged:
		case <-podsChanged:
		case <-b.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
	b.close(ctx)
	return nil
}

// round releases the lock first: a pod of HAMi's may wait for it. It says when
// to look again.
func (b *Plugin) round(ctx context.Context) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	node, _ := b.Watched.Node()
	if node == nil {
		return pollInterval, nil
	}
	state := b.State()
	look, lockErr := b.release(ctx, node, &state)
	settle, cardsErr := b.publish(ctx, node, &state)
	return min(look, settle, pollInterval), errors.Join(lockErr, cardsErr)
}

// leave closes the node to HAMi, which sends pods until it is told.
func (b *Plugin) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	node, _ := b.Watched.Node()
	if node == nil {
		return
	}
	state := b.State()
	state.Open = false
	if _, err := b.publish(ctx, node, &state); err != nil {
		b.Log.WarnContext(ctx, "HAMi is not told that this node is closed", "err", err)
	}
}
