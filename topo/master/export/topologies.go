package export

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// The APIs of topologies: KAI's objects are like Kueue's.
const (
	KueueGroup         = "kueue.x-k8s.io"
	KAIGroup           = "kai.scheduler"
	TopologiesResource = "topologies"
	// KueueVersion and KAIVersion are those that are shown; the one that is
	// written is the one that the API server prefers.
	KueueVersion = "v1beta2"
	KAIVersion   = "v1alpha1"
	// TopologyName is the name of the Topology by numbers, and how the others'
	// names begin.
	TopologyName = "heddle"
)

// hostname is the lowest level of a Topology.
const hostname = "kubernetes.io/hostname"

// TopologySpec is the spec of a Topology
// (https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling/).
type TopologySpec struct {
	Levels []TopologyLevel `json:"levels"`
}

// TopologyLevel is one level, the highest first.
type TopologyLevel struct {
	NodeLabel string `json:"nodeLabel"`
}

// Topologies are a fleet's levels as Kueue takes them. Kueue leaves a node without
// the label of any level out, so there is one for each shape of nodes, with the
// shape's name: its levels never change. Where NVLink domains cross groups, which
// as levels above them would cut them, there is one more without these groups. By
// numbered labels there is one for all nodes.
func Topologies(apiVersion string, s *fabric.Snapshot, tiers Tiers, templates []Template) ([]Object, error) {
	specs := map[string]TopologySpec{}
	for _, t := range templates {
		_, had := specs[TopologyName]
		switch {
		case t == TopographTemplate:
		case t.byKind() && len(specs) == 0:
			for shape, kinds := range levels(s) {
				specs[TopologyName+"-"+strings.ReplaceAll(cmp.Or(shape, v1alpha1.KindNode), ".", "-")] = t.topology(kinds, tiers)
			}
		case !t.byKind() && !had:
			kinds := slices.Clone(tiers)
			slices.Reverse(kinds)
			specs[TopologyName] = t.topology(kinds, tiers)
		}
	}
	out := []Object{}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		o, err := object(apiVersion, "Topology", name, specs[name])
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

func (t Template) topology(kinds []string, tiers Tiers) TopologySpec {
	spec := TopologySpec{}
	for _, kind := range kinds {
		spec.Levels = append(spec.Levels, TopologyLevel{t.Key(tiers.of(kind), kind)})
	}
	spec.Levels = append(spec.Levels, TopologyLevel{hostname})
	return spec
}

// levels are the kinds of groups, top first, of the nodes of each shape, and those
// of them that hold NVLink domains whole.
func levels(s *fabric.Snapshot) map[string][]string {
	cut := cutKinds(s)
	out := map[string][]string{}
	for holders := range nodes(s) {
		var kinds, whole []string
		for _, h := range holders {
			kinds = append(kinds, h.Kind)
			if len(cut) > 0 && !cut[holders[len(holders)-1]][h.Kind] {
				whole = append(whole, h.Kind)
			}
		}
		out[strings.Join(kinds, ".")] = kinds
		if len(holders) > 0 && len(cut[holders[len(holders)-1]]) > 0 {
			out[strings.Join(whole, ".")] = whole
		}
	}
	return out
}

// cutKinds are, by NVLink domain, the kinds of which several groups have its nodes.
func cutKinds(s *fabric.Snapshot) map[*fabric.Element]map[string]bool {
	out := map[*fabric.Element]map[string]bool{}
	type place struct {
		domain *fabric.Element
		kind   string
	}
	first := map[place]string{}
	for holders := range nodes(s) {
		if len(holders) == 0 || len(s.Crossing) == 0 {
			continue
		}
		domain := holders[len(holders)-1]
		if !slices.Contains(s.Crossing, domain) {
			continue
		}
		for _, h := range holders[:len(holders)-1] {
			at := place{domain, h.Kind}
			if first[at] == "" {
				first[at] = h.Name
			}
			if first[at] != h.Name {
				if out[domain] == nil {
					out[domain] = map[string]bool{}
				}
				out[domain][h.Kind] = true
			}
		}
	}
	return out
}
