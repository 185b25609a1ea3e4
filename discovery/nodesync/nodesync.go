// Package nodesync makes a Node's labels and taints what they should be, and
// leaves those of other writers alone.
//
// Labels go by server-side apply under one field manager, so the API server
// itself removes what is no longer applied and rejects what others own. Taints
// are one atomic list without owners, so they are read, modified and written
// with the resourceVersion, and an annotation in the same write records which
// are heddle's. Nothing is written when nothing would change.
//
// The package decides no label or taint; see discovery/labels.
package nodesync

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Desired is all that the Node should carry of heddle.
type Desired struct {
	Labels map[string]string
	Taints []corev1.Taint
	// Force takes labels over from other field managers instead of yielding.
	Force bool
}

// Conflict is a key that another writer holds with another value. It is left to
// that writer, unless Desired.Force.
type Conflict struct {
	// Kind is "label" or "taint".
	Kind string
	Key  string
	// Want is the desired value, Have the one that the Node has.
	Want, Have string
	// Manager is the other writer's field manager; empty where none is recorded.
	Manager string
}

func (c Conflict) String() string {
	by := c.Manager
	if by == "" {
		by = "another writer"
	}
	return fmt.Sprintf("%s %s: %s holds it with value %q, want %q", c.Kind, c.Key, by, c.Have, c.Want)
}

// Result is what a Sync did.
type Result struct {
	// Node is the Node after the writes.
	Node *corev1.Node
	// Writes counts the requests that changed something.
	Writes int
	// Conflicts are sorted by kind and key.
	Conflicts []Conflict
}

// Options configures a Syncer.
type Options struct {
	// Client is for core/v1; see [kube.NewClient].
	Client rest.Interface
	// Node is the Node's name.
	Node string
}

// Syncer writes one Node. It keeps no state: what heddle owns is recorded in the
// Node.
type Syncer struct {
	client rest.Interface
	node   string
}

// New returns a Syncer.
func New(o Options) *Syncer {
	return &Syncer{client: o.Client, node: o.Node}
}

// Node reads the Node.
func (s *Syncer) Node(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := s.client.Get().Resource("nodes").Name(s.node).Do(ctx).Into(node)
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", s.node, err)
	}
	return node, nil
}

// Sync brings the Node to want. The node argument is the newest one known; a
// stale one costs a request, never a wrong result. Taints go first, so that no
// pod is scheduled to a node between its labels and its taints. If one half fails
// the other is still tried.
func (s *Syncer) Sync(ctx context.Context, node *corev1.Node, want Desired) (Result, error) {
	r := Result{Node: node}
	errTaints := s.syncTaints(ctx, want.Taints, &r)
	errLabels := s.syncLabels(ctx, want.Labels, want.Force, &r)
	sortConflicts(r.Conflicts)
	return r, errors.Join(errTaints, errLabels)
}

// eventMessage is the API's limit on an Event's message, in bytes.
const eventMessage = 1024

// Warn records a Warning Event on the Node, where `kubectl describe node`
// shows it. Callers send one when something became wrong, not on every scan.
func (s *Syncer) Warn(ctx context.Context, reason, message string) error {
	now := metav1.NewTime(time.Now())
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: s.node + ".", Namespace: metav1.NamespaceDefault},
		// kubectl finds a Node's Events by its name used as UID, as the kubelet does.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: s.node, UID: types.UID(s.node)},
		Reason:         reason,
		Message:        message[:min(len(message), eventMessage)],
		Type:           corev1.EventTypeWarning,
		Source:         corev1.EventSource{Component: wellknown.FieldManager, Host: s.node},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	err := s.client.Post().Namespace(metav1.NamespaceDefault).Resource("events").Body(event).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("record event %s on node %s: %w", reason, s.node, err)
	}
	return nil
}
