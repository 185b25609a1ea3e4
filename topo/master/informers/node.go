package informers

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// Node holds the used part of a Node. It is immutable.
type Node struct {
	Name string
	UID  types.UID
	// Ready is whether condition Ready is True; Since is when the condition
	// last changed, zero without one.
	Ready bool
	Since time.Time
	// GPUs is status.allocatable of the GPU resources.
	GPUs int32
	// Shared is the number of shared GPUs, which GPUs lacks, and SharedUsed the number of those with a consumer.
	Shared, SharedUsed int32
	// Cordoned is spec.unschedulable.
	Cordoned bool
	// Labels holds the labels of groups and all labels that heddle owns, by key. Each label is on
	// many Nodes.
	Labels []unique.Handle[Label]
	// Fabric is the condition HeddleFabric, the zero value without one.
	Fabric unique.Handle[Condition]
}

// Label is a label of a Node.
type Label struct {
	Key, Value string
	// Owned means that heddle's field manager applied it.
	Owned bool
}

// Groups returns the names of groups in the Node's labels.
func (n *Node) Groups() []string {
	var out []string
	for _, l := range n.Labels {
		out = append(out, l.Value().Value)
	}
	return out
}

// SameStatus reports whether two versions differ in nothing but labels and the
// condition HeddleFabric.
func (n *Node) SameStatus(o *Node) bool {
	return n.UID == o.UID && n.Ready == o.Ready && n.Since.Equal(o.Since) && n.GPUs == o.GPUs &&
		n.Shared == o.Shared && n.SharedUsed == o.SharedUsed && n.Cordoned == o.Cordoned
}

// GetObjectMeta is for client-go's keys.
func (n *Node) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: n.Name} }

func (n *Node) keep(old *Node) *Node {
	if n.SameStatus(old) && slices.Equal(n.Labels, old.Labels) && n.Fabric == old.Fabric {
		return old
	}
	return n
}

// nodeReader selects what to keep of a Node.
type nodeReader struct {
	gpus     gpuResources
	manager  string
	suspects *suspect.Memory
}

func (r *nodeReader) read(node *corev1.Node) *Node {
	r.suspects.Node(node.Name, suspect.FaultsOf(node))
	n := &Node{
		Name: node.Name, UID: node.UID, Cordoned: node.Spec.Unschedulable, Fabric: readCondition(node.Status.Conditions),
	}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			n.Ready, n.Since = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	n.GPUs = bounded(r.gpus.count(node.Status.Allocatable))
	for _, gpu := range sharedGPUs(node) {
		n.Shared++
		if gpu.Taken.Slots > 0 {
			n.SharedUsed++
		}
	}
	owned := ownLabels(node.ManagedFields, r.manager)
	for key, value := range node.Labels {
		own := slices.Contains(owned, key)
		if own || strings.HasPrefix(key, wellknown.TopologyPrefix) {
			n.Labels = append(n.Labels, unique.Make(Label{Key: key, Value: value, Owned: own}))
		}
	}
	slices.SortFunc(n.Labels, func(a, b unique.Handle[Label]) int { return strings.Compare(a.Value().Key, b.Value().Key) })
	n.Labels = slices.Clip(n.Labels)
	return n
}

// ownLabels returns the label keys that a field manager applied. Fields that do not
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

// gpuResources are the names of whole GPUs.
type gpuResources []corev1.ResourceName

// count returns the number of GPUs of any name in a list.
func (names gpuResources) count(list corev1.ResourceList) (sum int64) {
	for _, name := range names {
		q := list[name]
		sum += int64(bounded(q.Value()))
	}
	return min(sum, maxCount)
}

func bounded(n int64) int32 { return int32(min(max(n, 0), maxCount)) }

// NodeState holds the state of one node. Node is nil while only a report exists, Report while only
// a Node exists.
type NodeState struct {
	Name   string
	Node   *Node
	Report *Report
	// Used is the number of GPUs that pods hold.
	Used int32
}

// Empty means that nothing is known.
func (s *NodeState) Empty() bool { return s.Node == nil && s.Report == nil }

// Believed returns the report if it is about this node, else nil.
func (s *NodeState) Believed() *Report {
	if s.Ignored() != "" {
		return nil
	}
	return s.Report
}

// Tests returns the last result of each port of a believed report that was tested.
func (s *NodeState) Tests() []v1alpha1.LinkTest {
	if r := s.Believed(); r != nil {
		return r.Tests
	}
	return nil
}

// Ignored returns the reason for ignoring the report. It is empty for a valid or missing report.
// The report's owner must be the Node of its name: the admission policy lets
// only that node's worker write such a report.
func (s *NodeState) Ignored() string {
	switch {
	case s.Report == nil:
		return ""
	case s.Node == nil:
		return "Node not found"
	case s.Report.Owner == "":
		return "it is not owned by the Node of its name"
	case s.Report.Owner != s.Node.UID:
		return "it is owned by another Node, or by an earlier one of its name"
	}
	return ""
}
