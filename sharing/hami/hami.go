// Package hami is a node's side of HAMi's protocol for MetaX sGPU, by which a
// stock HAMi of 2.6 or later chooses the GPUs of pods: it publishes the
// node's GPUs, reads HAMi's choice, releases HAMi's node lock, and annotates the
// pod with the result of the binding.
//
// The package chooses no GPU and prepares no container. HAMi's annotations are
// requests: the node's accounting decides whether the GPU has room. The package
// knows no API client: its caller passes what is watched, and writes for it.
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

// Watched is the caller's cache of the cluster. What it returns is immutable.
type Watched interface {
	// Node is this Node, nil while it is not known. changed receives when its
	// annotations [wellknown.HAMiLock] or [wellknown.HAMiCards] may differ; it
	// has one reader.
	Node() (node *corev1.Node, changed <-chan struct{})
	// Pods are the pods of this node. changed is closed when they change; known
	// is false until they were listed once.
	Pods() (pods []*corev1.Pod, changed <-chan struct{}, known bool)
}

// Reader reads from the API server, past the cache. Its errors are the API's: IsNotFound of
// k8s.io/apimachinery/pkg/api/errors must see through them.
type Reader interface {
	ReadNode(ctx context.Context) (*corev1.Node, error)
	ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// Writer merges annotations into objects; nil removes one. IsConflict must
// see through its errors.
type Writer interface {
	// AnnotateNode writes this Node. A version that is not "" must be the
	// Node's resourceVersion, or the write is a conflict.
	AnnotateNode(ctx context.Context, version string, annotations map[string]*string) error
	// AnnotatePod writes a pod. If another pod has its name by now, the write
	// is a conflict.
	AnnotatePod(ctx context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string) error
}

// State is what the node offers to HAMi now.
type State struct {
	// Enabled reports whether the node works with HAMi at all: sGPU is on, and
	// its protocol too.
	Enabled bool
	// Open reports whether a kubelet has the list of sgpu and follows it. While
	// none does, it would reject for good the pods that HAMi sends.
	Open bool
	// Resource is the name of sgpu.
	Resource string
	// GPUs are the shared GPUs, in the order that their indices have. A GPU
	// that
	// is lost or draining stays among them while a pod holds it.
	GPUs []GPU
}

// Options of a Plugin.
type Options struct {
	// Node is the name of this Node.
	Node    string
	Watched Watched
	Reader  Reader
	Writer  Writer
	// State must return at once.
	State func() State
	// IsLocal reports whether a GPU is of this machine. The plugin removes an
	// annotation only if it names such a GPU.
	IsLocal func(uuid string) bool
	Log     *slog.Logger
}
