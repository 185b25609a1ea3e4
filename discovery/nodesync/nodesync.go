// Package nodesync makes a Node's labels and taints what they should be, and
// leaves those of other writers alone.
//
// Labels go by server-side apply under one field manager, so the API server
// itself removes labels that are not applied again, and rejects what others own. Taints
// are one atomic list without owners, so they are read, modified and written
// with the resourceVersion, and an annotation in the same write records which
// are heddle's. Nothing is written when nothing would change.
//
// The package decides no label or taint; see discovery/labels.
package nodesync

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Desired is all that the Node should carry of heddle.
type Desired struct {
	Labels map[string]string
	Taints []corev1.Taint
	// DriverAbsentSince is the annotation of that name; empty removes it.
	DriverAbsentSince string
	// Force takes labels over from other field managers instead of yielding.
	Force bool
}

// Carried returns what heddle wrote to a Node: the labels of its field manager, and the
// recorded taints.
func Carried(node *corev1.Node) (labels map[string]string, taints []corev1.Taint) {
	labels = map[string]string{}
	for key, managers := range LabelOwners(node) {
		if value, there := node.Labels[key]; there && slices.Contains(managers, wellknown.FieldManager) {
			labels[key] = value
		}
	}
	recorded := recordedTaints(node)
	for _, t := range node.Spec.Taints {
		if slices.Contains(recorded, taintID(t)) {
			taints = append(taints, t)
		}
	}
	return labels, taints
}

// Conflict is a key that another writer holds with another value. It is left to
// that writer, unless Desired.Force.
type Conflict struct {
	// Kind is "label" or "taint".
	Kind string
	Key  string
	// Want is the desired value, Have the current value.
	Want, Have string
	// Manager is the other writer's field manager; empty where none is recorded.
	Manager string
}

func (c Conflict) String() string {
	by := cmp.Or(c.Manager, "another writer")
	return fmt.Sprintf("%s %s: %s holds it with value %q, want %q", c.Kind, c.Key, by, c.Have, c.Want)
}

// Result is the result of a Sync.
type Result struct {
	// Node is the Node after the writes.
	Node *corev1.Node
	// Writes counts the requests that changed something.
	Writes int
	// Conflicts are sorted by kind and key.
	Conflicts []Conflict
}

// Syncer writes one Node. It keeps no state: what heddle owns is recorded in the
// Node.
type Syncer struct {
	client rest.Interface
	node   string
}

// New returns a Syncer of the named Node. The client is for core/v1; see
// [kube.NewClient].
func New(client rest.Interface, node string) *Syncer { return &Syncer{client: client, node: node} }

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
	errTaints := s.write(ctx, &r, "taints", types.MergePatchType, metav1.PatchOptions{},
		func(n *corev1.Node) (any, []Conflict, error) {
			p := planTaints(n, &want)
			if !p.write {
				return nil, p.conflicts, nil
			}
			patch, err := p.patch(n.ResourceVersion)
			return patch, p.conflicts, err
		})
	force := want.Force
	errLabels := s.write(ctx, &r, "labels", types.ApplyPatchType, metav1.PatchOptions{Force: &force},
		func(n *corev1.Node) (any, []Conflict, error) {
			p := planLabels(n, want.Labels, want.Force)
			if !p.write {
				return nil, p.conflicts, nil
			}
			force = want.Force || p.takes
			return p.patch(s.node, n), p.conflicts, nil
		})
	r.Conflicts = sorted(r.Conflicts)
	return r, errors.Join(errTaints, errLabels)
}

// writeAttempts bounds the races with other writers of the Node, such as the
// node lifecycle controller.
const writeAttempts = 5

// write sends the planned patch, if any, to the API server. The API
// server answers with a conflict if another client wrote the Node since it was
// read: then it is read and planned for again.
func (s *Syncer) write(
	ctx context.Context, r *Result, what string, kind types.PatchType, options metav1.PatchOptions,
	plan func(*corev1.Node) (patch any, conflicts []Conflict, err error),
) error {
	options.FieldManager = wellknown.FieldManager
	for range writeAttempts {
		patch, conflicts, err := plan(r.Node)
		if err == nil && patch == nil {
			r.Conflicts = append(r.Conflicts, conflicts...)
			return nil
		}
		var body []byte
		if err == nil {
			body, err = json.Marshal(patch)
		}
		if err != nil {
			return fmt.Errorf("encode %s: %w", what, err)
		}
		node := &corev1.Node{}
		err = s.client.Patch(kind).Resource("nodes").Name(s.node).VersionedParams(&options, metav1.ParameterCodec).
			Body(body).Do(ctx).Into(node)
		switch {
		case err == nil:
			if node.ResourceVersion != r.Node.ResourceVersion {
				r.Writes++
			}
			r.Node, r.Conflicts = node, append(r.Conflicts, conflicts...)
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("write %s of node %s: %w", what, s.node, err)
		}
		if node, err = s.Node(ctx); err != nil {
			return err
		}
		r.Node = node
	}
	return fmt.Errorf("write %s of node %s: another client wrote it each of %d times", what, s.node, writeAttempts)
}

// sorted orders conflicts by kind and key.
func sorted(cs []Conflict) []Conflict {
	slices.SortFunc(cs, func(a, b Conflict) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Key, b.Key))
	})
	return cs
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

// Preview lists what a Sync would change, one line each, sorted: "+ key=value"
// for what is new, "- key=value" for what goes, "~ key=old -> new" for a new
// value; taints follow as "+ taint key=value:effect".
func Preview(node *corev1.Node, want Desired) (changes []string, conflicts []Conflict) {
	labels := planLabels(node, want.Labels, want.Force)
	for key, managers := range LabelOwners(node) {
		if _, kept := labels.apply[key]; !kept && slices.Equal(managers, []string{wellknown.FieldManager}) {
			changes = append(changes, fmt.Sprintf("- %s=%s", key, node.Labels[key]))
		}
	}
	for key, value := range labels.apply {
		switch old, there := node.Labels[key]; {
		case !there:
			changes = append(changes, fmt.Sprintf("+ %s=%s", key, value))
		case old != value:
			changes = append(changes, fmt.Sprintf("~ %s=%s -> %s", key, old, value))
		}
	}
	slices.Sort(changes)
	taints := planTaints(node, &want)
	missing := func(list []corev1.Taint, sign string, in []corev1.Taint) {
		for _, t := range list {
			if !slices.ContainsFunc(in, func(o corev1.Taint) bool { return o.MatchTaint(&t) && o.Value == t.Value }) {
				changes = append(changes, sign+" taint "+t.ToString())
			}
		}
	}
	missing(node.Spec.Taints, "-", taints.taints)
	missing(taints.taints, "+", node.Spec.Taints)
	return changes, sorted(slices.Concat(labels.conflicts, taints.conflicts))
}
