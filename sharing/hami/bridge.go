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
	// roundTimeout bounds the API calls of one round.
	roundTimeout = 10 * time.Second
	// closeTimeout bounds the last write of a process that ends.
	closeTimeout = 3 * time.Second
	// firstRetry and lastRetry bound the pause after a round that failed.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// pollInterval is how often State is read without a notification.
	pollInterval = 5 * time.Second
)

// Plugin is a node's side of the protocol. Run must not run twice at a time.
type Plugin struct {
	Options
	changed notify.Signal
	// phases are to be written to pods.
	phases chan phase

	// What follows is Run's alone.
	lock  lockView
	wrote time.Time

	// mu guards written.
	mu      sync.Mutex
	written map[types.UID]string
}

// New returns a Plugin. It does nothing before Run.
func New(o Options) *Plugin {
	return &Plugin{
		Options: o, changed: notify.New(),
		phases: make(chan phase, maxPhases), written: map[types.UID]string{},
	}
}

// Notify reports that State may differ. It never waits.
func (b *Plugin) Notify() {
	b.changed.Notify()
}

// Run follows the Node and its pods until ctx ends, and then publishes every GPU
// as unhealthy, within three seconds. It returns nil: a round that fails is
// repeated.
func (b *Plugin) Run(ctx context.Context) error {
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { b.writePhases(ctx) })
	pause := firstRetry
	for ctx.Err() == nil {
		// The channels first: what changes during the round is another round's.
		_, nodeChanged := b.Watched.Node()
		_, podsChanged, _ := b.Watched.Pods()
		again, err := b.round(ctx)
		if err != nil && ctx.Err() == nil {
			b.Log.WarnContext(ctx, "HAMi's annotations not written, retrying", "err", err, "retry_in", pause)
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

// round releases the lock first: a pod of HAMi's may wait for it. It returns the time until the next round.
func (b *Plugin) round(ctx context.Context) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	node, _ := b.Watched.Node()
	if node == nil {
		return pollInterval, nil
	}
	state := b.State()
	lockAgain, lockErr := b.release(ctx, node, &state)
	publishAgain, publishErr := b.publish(ctx, node, &state)
	return min(lockAgain, publishAgain, pollInterval), errors.Join(lockErr, publishErr)
}

// close closes the node to HAMi, which sends pods as long as a GPU is healthy.
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
		b.Log.WarnContext(ctx, "closing the node to HAMi failed", "err", err)
	}
}
