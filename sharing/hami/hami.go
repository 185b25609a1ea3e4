// Package hami is a node's side of HAMi's protocol for MetaX sGPU, by which a
// stock HAMi of 2.6 or later chooses the GPUs of pods: it publishes the
// node's GPUs, reads HAMi's choice, releases HAMi's node lock, and annotates the
// pod with the result of the binding.
//
// The package chooses no GPU and prepares no container. HAMi's annotations are requests: the node's
// accounting decides whether the GPU has room. The package knows no API client: its caller passes
// watched objects, and writes for it.
//
// Facts are from HAMi's source, pkg/device/metax, pkg/scheduler and
// pkg/util/nodelock of 2.6 to 2.10.
package hami

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/internal/notify"
)

// Watched is the caller's cache of the cluster. What it returns is immutable.
type Watched interface {
	// Node is this Node, nil while it is not known. changed receives when its
	// annotations [wellknown.HAMiLock] or [wellknown.HAMiGPUs] may differ; it
	// has one reader.
	Node() (node *corev1.Node, changed <-chan struct{})
	// Pods are the pods of this node. changed is closed when they change; known
	// is false until they were listed once.
	Pods() (pods []*corev1.Pod, changed <-chan struct{}, known bool)
}

// API is the API server, past the cache. It merges annotations into objects; nil
// removes one. IsNotFound and IsConflict of k8s.io/apimachinery/pkg/api/errors
// must see through its errors.
type API interface {
	ReadNode(ctx context.Context) (*corev1.Node, error)
	ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// AnnotateNode writes this Node. A version that is not "" must be the
	// Node's resourceVersion, or the write is a conflict.
	AnnotateNode(ctx context.Context, version string, annotations map[string]*string) error
	// AnnotatePod writes a pod. If another pod has its name, the write
	// is a conflict.
	AnnotatePod(ctx context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string) error
}

// State is the node's current offer to HAMi.
type State struct {
	// Enabled reports whether the node works with HAMi at all: sGPU is on, and
	// its protocol too.
	Enabled bool
	// Open reports whether a kubelet has the list of sgpu and follows it. While
	// none does, it would reject for good the pods that HAMi sends.
	Open bool
	// Resource is the name of sgpu.
	Resource string
	// GPUs are the shared GPUs, in the order that their indices have. A GPU that is
	// lost or draining stays among them while a pod holds it.
	GPUs []GPU
	// Prepared reports whether the containers of a pod that HAMi bound got their GPUs, by the pod's UID;
	// pods without known values are not in it.
	Prepared map[types.UID]bool
	// Local are the UUIDs of all GPUs of this machine. An annotation that names none
	// of them is another plugin's, and is not removed.
	Local []string
}

// Options of a Plugin.
type Options struct {
	// Node is the name of this Node.
	Node    string
	Watched Watched
	API     API
	Log     *slog.Logger
}

const (
	// roundTimeout bounds the API calls of one round.
	roundTimeout = 10 * time.Second
	// closeTimeout bounds the last write of a process that ends.
	closeTimeout = 3 * time.Second
	// firstRetry and lastRetry bound the pause after a round that failed.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// pollInterval is the interval between checks of the Node without a change.
	pollInterval = 5 * time.Second
)

// Plugin is a node's side of the protocol. Run must not run twice at a time.
type Plugin struct {
	Options
	changed notify.Signal

	// What follows is Run's alone.
	lock lockView

	state atomic.Pointer[State]
}

// New returns a Plugin. It does nothing before Run.
func New(o Options) *Plugin {
	return &Plugin{Options: o, changed: notify.New()}
}

// Set takes what the node offers now. It never waits. Before the first State the
// plugin writes nothing.
func (b *Plugin) Set(s State) {
	b.state.Store(&s)
	b.changed.Notify()
}

// now returns the Node and what it offers; node is nil while one of them is not known.
func (b *Plugin) now() (node *corev1.Node, state State) {
	offered := b.state.Load()
	if offered == nil {
		return nil, State{}
	}
	node, _ = b.Watched.Node()
	return node, *offered
}

// Run follows the Node and its pods until ctx ends, and then publishes every GPU
// as unhealthy, within three seconds. It returns nil: a round that fails is
// repeated.
func (b *Plugin) Run(ctx context.Context) error {
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

// round releases the lock first: a pod of HAMi's may wait for it. It returns the
// time until the next round.
func (b *Plugin) round(ctx context.Context) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	node, state := b.now()
	if node == nil {
		return pollInterval, nil
	}
	lockAgain, lockErr := b.release(ctx, node, &state)
	return min(lockAgain, pollInterval), errors.Join(lockErr, b.publish(ctx, node, &state), b.writePhases(ctx, &state))
}

// close closes the node to HAMi, which sends pods as long as a GPU is healthy.
func (b *Plugin) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	node, state := b.now()
	if node == nil {
		return
	}
	state.Open = false
	if err := b.publish(ctx, node, &state); err != nil {
		b.Log.WarnContext(ctx, "closing the node to HAMi failed", "err", err)
	}
}
