package informers

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is what is used of a Node. It never changes.
type Node struct {
	Name, UID string
	// ID stands for the UID.
	ID ID
	// Ready is whether condition Ready is True; Since is when the condition
	// last changed, zero without one.
	Ready bool
	Since time.Time
	// GPUs is status.allocatable of the GPU resource.
	GPUs int32
	// Cordoned is spec.unschedulable.
	Cordoned bool
	// Labels are those with a tier key, and all of our own, by key.
	Labels []Label
}

// Label is a label of a Node.
type Label struct {
	Key, Value string
	// Owned tells that our field manager applied it.
	Owned bool
}

// Groups are the names of groups that the Node carries.
func (n *Node) Groups() []string {
	var out []string
	for _, l := range n.Labels {
		out = append(out, l.Value)
	}
	return out
}

// Same tells whether nothing that is used changed.
func (n *Node) Same(o *Node) bool { return n.Shows(o) && slices.Equal(n.Labels, o.Labels) }

// Shows tells whether nothing changed that anybody is shown.
func (n *Node) Shows(o *Node) bool {
	return n.UID == o.UID && n.Ready == o.Ready && n.Since.Equal(o.Since) && n.GPUs == o.GPUs &&
		n.Cordoned == o.Cordoned
}

// nodeReader says what to keep of a Node.
type nodeReader struct {
	gpu     corev1.ResourceName
	manager string
	isTier  func(key string) bool
	words   words
}

func (r *nodeReader) read(obj any) (*Node, bool) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, false
	}
	n := &Node{Name: node.Name, UID: string(node.UID), ID: IDOf(string(node.UID)), Cordoned: node.Spec.Unschedulable}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			n.Ready, n.Since = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	if q, ok := node.Status.Allocatable[r.gpu]; ok {
		n.GPUs = count(q.Value())
	}
	n.Labels = r.labels(node)
	return n, true
}

// labels are sorted by key.
func (r *nodeReader) labels(node *corev1.Node) []Label {
	owned := ownLabels(node.ManagedFields, r.manager)
	var out []Label
	for key, value := range node.Labels {
		mine := slices.Contains(owned, key)
		if mine || r.isTier(key) {
			out = append(out, Label{Key: r.words.one(key), Value: r.words.one(value), Owned: mine})
		}
	}
	slices.SortFunc(out, func(a, b Label) int { return strings.Compare(a.Key, b.Key) })
	return slices.Clip(out)
}

// ownLabels are the label keys that a field manager applied. Fields that do not
// parse own nothing.
func ownLabels(fields []metav1.ManagedFieldsEntry, manager string) []string {
	var out []string
	for i := range fields {
		entry := &fields[i]
		if entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationApply ||
			entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		var tree struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &tree) != nil {
			continue
		}
		for field := range tree.Metadata.Labels {
			if key, ok := strings.CutPrefix(field, "f:"); ok {
				out = append(out, key)
			}
		}
	}
	return out
}

// maxCount bounds a number of GPUs: no node has more, and sums stay far from
// overflow.
const maxCount = 1 << 16

func count(n int64) int32 { return int32(min(max(n, 0), maxCount)) }
