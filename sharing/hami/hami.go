// Package hami is a node's side of HAMi's protocol for MetaX sGPU, by which a
// stock HAMi of 2.6 or later chooses the cards of pods: it publishes the
// node's cards, reads HAMi's choice, takes HAMi's node lock away, and says on
// the pod how binding ended.
//
// It decides no card itself and binds nothing, and what HAMi's annotations say
// is a wish: who else has a share of the card is the ledger's to judge. It
// knows no client: its consumer gives it what is watched, and writes for it.
//
// Facts are from HAMi's source, pkg/device/metax, pkg/scheduler and
// pkg/util/nodelock of 2.6 to 2.10.
package hami

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Watched is what is known of the cluster without asking. What it returns is
// immutable.
type Watched interface {
	// Node is our own Node, nil while it is not known. changed receives when
	// its annotations [names.HAMiLock] or [names.HAMiGPUs] may differ; it has
	// one reader.
	Node() (node *corev1.Node, changed <-chan struct{})
	// Pods are those of our node. changed is closed when there are others;
	// known is false until they were listed once.
	Pods() (pods []*corev1.Pod, changed <-chan struct{}, known bool)
}

// Reader asks the API server itself. Its errors are the API's: IsNotFound of
// k8s.io/apimachinery/pkg/api/errors must see through them.
type Reader interface {
	ReadNode(ctx context.Context) (*corev1.Node, error)
	ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// Writer merges annotations into objects; nil takes one away. IsConflict must
// see through its errors.
type Writer interface {
	// AnnotateNode writes our own Node. A version that is not "" must be the
	// Node's resourceVersion, or the write is a conflict.
	AnnotateNode(ctx context.Context, version string, annotations map[string]*string) error
	// AnnotatePod writes a pod. If another pod has its name by now, the write
	// is a conflict.
	AnnotatePod(ctx context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string) error
}

// State is what the node has for HAMi now.
type State struct {
	// Enabled tells whether the node works with HAMi at all: sGPU is on, and
	// its protocol too.
	Enabled bool
	// Open tells whether a kubelet has the list of sgpu and follows it. While
	// none does, it would refuse for good the pods that HAMi sends.
	Open bool
	// Resource is the name of sgpu.
	Resource string
	// Cards are the shared cards, in the order that their indices have. A card
	// that is lost or leaves stays among them while anybody holds it.
	GPUs []GPU
}

// Options of a Bridge.
type Options struct {
	// Node is the name of our Node.
	Node    string
	Watched Watched
	Reader  Reader
	Writer  Writer
	// State must return at once.
	State func() State
	// Ours tells whether a GPU is of this machine: only such annotations of
	// cards are taken away that name one.
	IsLocal func(uuid string) bool
	Log     *slog.Logger
}
