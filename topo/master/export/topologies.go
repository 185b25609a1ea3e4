package export

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// The APIs of topologies: KAI's objects are like Kueue's.
const (
	KueueGroup         = "kueue.x-k8s.io"
	KAIGroup           = "kai.scheduler"
	TopologiesResource = "topologies"
	// KueueVersion and KAIVersion are the versions of GET /v1/export; the leader
	// writes the version that the API server prefers.
	KueueVersion = "v1beta2"
	KAIVersion   = "v1alpha1"
	// TopologyPrefix begins the names of Topologies; the shape follows.
	TopologyPrefix = "heddle-"
)

// hostname is the lowest level of a Topology.
const hostname = "kubernetes.io/hostname"

// TopologySpec is the spec of a Topology
// (https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling/).
type TopologySpec struct {
	Levels []TopologyLevel `json:"levels"`
}

// TopologyLevel is one level of a Topology.
type TopologyLevel struct {
	NodeLabel string `json:"nodeLabel"`
}

// Topologies returns a fleet's levels as Kueue takes them. Kueue leaves a node without
// the label of any level out, so there is one Topology for each shape of nodes, with
// the shape's name: its levels never change. Where NVLink domains cross groups, which
// as levels above them would cut them, there is one more without these groups.
func Topologies(apiVersion string, s *fabric.Snapshot) ([]Object, error) {
	all := levels(s)
	out := []Object{}
	for _, shape := range slices.Sorted(maps.Keys(all)) {
		spec := TopologySpec{}
		for _, kind := range all[shape] {
			spec.Levels = append(spec.Levels, TopologyLevel{wellknown.TopologyPrefix + kind})
		}
		spec.Levels = append(spec.Levels, TopologyLevel{hostname})
		name := TopologyPrefix + strings.ReplaceAll(cmp.Or(shape, v1alpha1.KindNode), ".", "-")
		o, err := object(apiVersion, "Topology", name, spec)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

// levels returns the kinds of groups, top first, of the nodes of each shape, and those
// of them that hold NVLink domains whole.
func levels(s *fabric.Snapshot) map[string][]string {
	cut, out := cutKinds(s), map[string][]string{}
	for holders := range nodes(s) {
		kinds := kindsOf(holders)
		out[strings.Join(kinds, ".")] = kinds
		if len(holders) == 0 {
			continue
		}
		if gone := cut[holders[len(holders)-1]]; len(gone) > 0 {
			whole := slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return gone[kind] })
			out[strings.Join(whole, ".")] = whole
		}
	}
	return out
}

// cutKinds returns, by NVLink domain, the kinds with several groups that have its nodes.
func cutKinds(s *fabric.Snapshot) map[*fabric.Element]map[string]bool {
	first, out := map[*fabric.Element]map[string]string{}, map[*fabric.Element]map[string]bool{}
	for _, domain := range s.Crossing {
		first[domain], out[domain] = map[string]string{}, map[string]bool{}
	}
	for holders := range nodes(s) {
		if len(holders) == 0 || first[holders[len(holders)-1]] == nil {
			continue
		}
		domain := holders[len(holders)-1]
		for _, h := range holders[:len(holders)-1] {
			if name, seen := first[domain][h.Kind]; seen && name != h.Name {
				out[domain][h.Kind] = true
			}
			first[domain][h.Kind] = h.Name
		}
	}
	return out
}
