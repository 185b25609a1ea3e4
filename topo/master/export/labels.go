package export

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// The label keys of NVIDIA topograph: the fabric's groups by their distance from the
// node, from tier-0, and its NVLink domain
// (https://docs.nvidia.com/topograph/reference/node-labels-and-annotations).
const (
	topographTier   = "fabric.topograph.run/tier-"
	topographDomain = "accelerator.topograph.run/domain"
)

// LabelSets select the labels of Nodes.
type LabelSets struct {
	// Kinds are heddle.dev/topology.<kind>, and the kinds in heddle.dev/topology-shape.
	Kinds bool
	// Topograph are the labels of NVIDIA topograph.
	Topograph bool
}

// nodes returns the nodes of a snapshot with the groups that hold them, top first: of
// the tree, then NVLink domains that cross it. The list is valid until the next step.
func nodes(s *fabric.Snapshot) iter.Seq2[[]*fabric.Element, *fabric.Element] {
	crossing := map[*fabric.Element][]*fabric.Element{}
	for _, domain := range s.Crossing {
		for _, n := range domain.Child {
			crossing[n] = append(crossing[n], domain)
		}
	}
	return func(yield func([]*fabric.Element, *fabric.Element) bool) {
		var all []*fabric.Element
		for holders, e := range s.All() {
			if e.Kind != v1alpha1.KindNode {
				continue
			}
			all = append(append(all[:0], holders...), crossing[e]...)
			if !yield(all, e) {
				return
			}
		}
	}
}

// Labels returns the labels of every node of a snapshot, in the tree's order. A group
// with a name that is not a valid label value gives none. The map is the caller's.
func Labels(s *fabric.Snapshot, sets LabelSets) iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		for holders, e := range nodes(s) {
			holders = slices.DeleteFunc(holders, func(h *fabric.Element) bool { return wellknown.CheckValue(h.Name) != nil })
			labels := make(map[string]string, 2*len(holders)+1)
			if sets.Kinds {
				labels[wellknown.TopologyShape] = shapeOf(holders)
				for _, h := range holders {
					labels[wellknown.TopologyPrefix+h.Kind] = h.Name
				}
			}
			if sets.Topograph {
				topograph(labels, holders)
			}
			if !yield(e.Name, labels) {
				return
			}
		}
	}
}

func topograph(labels map[string]string, holders []*fabric.Element) {
	distance := 0
	for _, h := range slices.Backward(holders) {
		if h.NVLink {
			labels[topographDomain] = h.Name
			continue
		}
		labels[topographTier+strconv.Itoa(distance)] = h.Name
		distance++
	}
}

// kindsOf returns the kinds of groups.
func kindsOf(holders []*fabric.Element) []string {
	kinds := make([]string, len(holders))
	for i, h := range holders {
		kinds[i] = h.Kind
	}
	return kinds
}

// shapeOf returns the kinds of a node's groups, top first, as a label's value: nodes
// of one shape have labels with the same keys. No group has such a name: those begin
// with a kind and a hyphen.
func shapeOf(holders []*fabric.Element) string {
	if len(holders) == 0 {
		return v1alpha1.KindNode
	}
	return strings.Join(kindsOf(holders), ".")
}

// LabeledNodes returns the nodes of a snapshot with their labels by kind only.
func LabeledNodes(s *fabric.Snapshot) []Object {
	out := []Object{}
	for name, labels := range Labels(s, LabelSets{Kinds: true}) {
		out = append(out, Object{APIVersion: "v1", Kind: "Node", Metadata: ObjectMetadata{Name: name, Labels: labels}})
	}
	return out
}
