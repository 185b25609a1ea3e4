// Package nodesync makes a Node's labels and taints what they should be, and
// touches nothing that is not ours.
//
// Labels go by server-side apply under one field manager, so the API server
// itself removes what we stop applying and refuses what others own. Taints
// are one atomic list without owners, so they are read, modified and written
// with the resourceVersion, and an annotation in the same write records which
// are ours. Nothing is written when nothing would change.
//
// The package decides no label or taint; see discovery/labels.
package nodesync

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// Desired is what the Node should carry from us, and nothing else of ours.
type Desired struct {
	Labels map[string]string
	Taints []corev1.Taint
	// Force takes labels over from other field managers instead of yielding.
	Force bool
}

// Conflict is a key that somebody else holds with another value. It is left
// to them, unless Desired.Force.
type Conflict struct {
	// Kind is "label" or "taint".
	Kind string
	Key  string
	// Ours is what we would set, Theirs what stands.
	Ours, Theirs string
	// Manager is the other's field manager; empty where nobody recorded it.
	Manager string
}

func (c Conflict) String() string {
	by := c.Manager
	if by == "" {
		by = "another writer"
	}
	return fmt.Sprintf("%s %s: %s holds it with value %q, ours is %q", c.Kind, c.Key, by, c.Theirs, c.Ours)
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
	// Client speaks core/v1; see [NewClient].
	Client rest.Interface
	// Node is the Node's name.
	Node string
}

// Syncer writes one Node. It keeps no state of its own: what is ours stands
// in the Node.
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
// pod slips onto a node between its labels and its taints. If one half fails
// the other is still tried.
func (s *Syncer) Sync(ctx context.Context, node *corev1.Node, want Desired) (Result, error) {
	r := Result{Node: node}
	errTaints := s.syncTaints(ctx, want.Taints, &r)
	errLabels := s.syncLabels(ctx, want.Labels, want.Force, &r)
	sortConflicts(r.Conflicts)
	return r, errors.Join(errTaints, errLabels)
}
