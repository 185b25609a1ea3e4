package worker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/rdma"
)

// The bounds of a NodeTopology.
const (
	maxAccelerators = 16
	maxDomain       = 128
	maxSkipped      = 64
	maxUplinks      = 2048
)

// accelerators counts the node's GPUs by product, as the labels do.
func accelerators(m *machine.Machine) (out []v1alpha1.Accelerator) {
	for _, g := range model.Groups(m.GPUs) {
		out = append(out, v1alpha1.Accelerator{
			Product: wellknown.Value(g.Product), Count: int32(min(len(g.GPUs), math.MaxInt16)),
		})
	}
	slices.SortFunc(out, func(a, b v1alpha1.Accelerator) int { return strings.Compare(a.Product, b.Product) })
	return out[:min(len(out), maxAccelerators)]
}

// nvlinkDomain returns the NVLink domain that all GPUs are in which are in one, as
// in the label gpu.clique.
func nvlinkDomain(m *machine.Machine) (domain, fault string) {
	place, conflict := labels.Clique(m)
	switch {
	case conflict:
		return "", "the GPUs are in different cliques"
	case len(place) > maxDomain:
		return "", "an NVLink domain of " + strconv.Itoa(len(place)) + " bytes"
	}
	return place, ""
}

// input is the data that a pass has gathered.
type input struct {
	machine  *machine.Machine
	topology *config.Topology
	ports    []Port
	// omitted counts the ports beyond the bound.
	omitted int
	// answers are in the order of the sources' precedence.
	answers []answer
	// before is the memory of earlier passes.
	before *v1alpha1.NodeTopologySpec
	// now is the time of the pass.
	now time.Time
	// counters are empty where ports are replayed.
	counters rdma.CounterScan
	// far are the counters of the switches' ports in the same reading.
	far map[PortKey]*v1alpha1.Counters
	// degraded are the links that are degraded.
	degraded []v1alpha1.DegradedLink
}

type answer struct {
	source v1alpha1.Source
	Report
}

// merge makes the report of a pass. It is pure; equal inputs give equal
// reports, byte for byte.
func merge(in input) v1alpha1.NodeTopologySpec {
	spec := v1alpha1.NodeTopologySpec{Accelerators: accelerators(in.machine)}
	released := len(in.machine.GPUs) == 0 && slices.ContainsFunc(in.machine.Probes, func(p machine.Probe) bool {
		return p.State == machine.ProbeReleased
	})
	if released { // A worker that started under the release has read no GPU.
		spec.Accelerators = in.before.Accelerators
	}
	skip := func(name, reason string) { spec.Skipped = append(spec.Skipped, skipped(name, reason)) }
	if in.topology.Uses(config.SourceNVLink) {
		domain, fault := nvlinkDomain(in.machine)
		if spec.NVLinkDomain = domain; fault != "" {
			skip("nvlink", fault)
		}
		if released {
			spec.NVLinkDomain = in.before.NVLinkDomain
		}
	}
	if in.omitted > 0 {
		skip("ports", fmt.Sprintf("%d ports over the limit", in.omitted))
	}
	for _, a := range in.answers {
		spec.Skipped = append(spec.Skipped, a.Skipped...)
		spec.Uplinks = append(spec.Uplinks, a.Uplinks...)
	}
	spec.Uplinks = spec.Uplinks[:min(len(spec.Uplinks), maxUplinks)]
	for i := range in.ports {
		r := in.ports[i].Rail
		mergeLink(&in, &r, skip)
		r.Since, r.Counters = in.since(&r), in.counted(&r)
		spec.Rails = append(spec.Rails, r)
		in.explain(&r, skip)
		in.full(&r, skip)
	}
	spec.DegradedLinks = in.degradedLinks()
	mergePath(&in, &spec, skip)
	spec.Stale = in.stale(&spec)
	slices.SortFunc(spec.Rails, func(a, b v1alpha1.Rail) int {
		return cmp.Or(cmp.Compare(a.Rail, b.Rail), cmp.Compare(a.Plane, b.Plane), strings.Compare(a.ID, b.ID),
			cmp.Compare(a.Port, b.Port), strings.Compare(a.Netdev, b.Netdev))
	})
	slices.SortFunc(spec.Skipped, func(a, b v1alpha1.Skipped) int {
		return cmp.Or(machine.CompareNames(a.Name, b.Name), strings.Compare(a.Reason, b.Reason))
	})
	spec.Skipped = slices.Compact(spec.Skipped)
	spec.Skipped = spec.Skipped[:min(len(spec.Skipped), maxSkipped)]
	return spec
}

// mergePath takes the groups from the first source that has some. Labels count
// only where no switch is known: cables show more than a cloud's zones.
func mergePath(in *input, spec *v1alpha1.NodeTopologySpec, skip func(name, reason string)) {
	seen := slices.ContainsFunc(spec.Rails, func(r v1alpha1.Rail) bool { return r.Switch != nil })
	for _, a := range in.answers {
		if a.source == v1alpha1.SourceNodeLabels && seen {
			continue
		}
		path := a.Path
		if len(path) == 0 && a.NoPath != Unknown && in.before.PathSource == a.source {
			path = in.before.Path
		}
		switch {
		case len(path) == 0:
		case spec.PathSource == "":
			spec.Path, spec.PathSource = path, a.source
		case !slices.Equal(path, spec.Path):
			skip(string(a.source), fmt.Sprintf("reports %s, but %s reports %s and takes precedence",
				strings.Join(path, "/"), spec.PathSource, strings.Join(spec.Path, "/")))
		}
	}
}

// The confidence, in percent, in old answers and in disputed ones.
const (
	// Remembered is the least that topo-master groups by.
	Remembered = 50
	contested  = 70
)

// mergeLink enters the switch port at the other end of a cable from the first
// source that knows it.
func mergeLink(in *input, r *v1alpha1.Rail, skip func(name, reason string)) {
	k := keyOf(r)
	for _, a := range in.answers {
		var link *Link
		if i := slices.IndexFunc(a.Links, func(l Link) bool { return l.PortKey == k }); i >= 0 {
			link = &a.Links[i]
		} else {
			link = lastKnown(in.before, a.source, r, a.NoLink[k])
		}
		switch {
		case link == nil:
		case r.Switch == nil:
			r.Switch, r.SwitchPort, r.Source, r.Confidence = &link.Switch, link.SwitchPort, a.source, link.Confidence
		case !same(*r.Switch, link.Switch):
			r.Confidence = min(r.Confidence, contested)
			skip(fmt.Sprintf("%s port %d", r.HCA, r.Port), fmt.Sprintf("%s reports %s, but %s reports %s and takes precedence",
				a.source, label(link.Switch), r.Source, label(*r.Switch)))
		}
	}
}

// same reports whether two sources mean one switch: people write names where
// the switch has a GUID or an address, and spell those in many ways.
func same(a, b v1alpha1.Switch) bool {
	plain := func(s string) string {
		s = strings.TrimPrefix(strings.ToLower(s), "0x")
		return strings.NewReplacer(":", "", "-", "", ".", "").Replace(s)
	}
	for _, x := range []string{a.ID, a.Name} {
		for _, y := range []string{b.ID, b.Name} {
			if x != "" && plain(x) == plain(y) {
				return true
			}
		}
	}
	return false
}

func label(s v1alpha1.Switch) string {
	if s.Name == "" {
		return s.ID
	}
	return s.ID + " (" + s.Name + ")"
}

// remember returns the result of a pass plus the rails that disappeared: an HCA returns to its rail
// when its driver is loaded again.
func remember(before, now *v1alpha1.NodeTopologySpec) v1alpha1.NodeTopologySpec {
	gone := slices.DeleteFunc(slices.Clone(before.Rails), func(b v1alpha1.Rail) bool {
		return slices.ContainsFunc(now.Rails, func(r v1alpha1.Rail) bool { return keyOf(&r) == keyOf(&b) })
	})
	memory := *now
	memory.Rails = slices.Concat(now.Rails, gone)
	memory.Rails = memory.Rails[:min(len(memory.Rails), maxMemory)]
	return memory
}

// maxMemory bounds the rails that are remembered.
const maxMemory = 256

// lastKnown returns the link that the source reported before, if it has a reason to report none
// now. An HCA with another GUID in the slot is another port.
func lastKnown(before *v1alpha1.NodeTopologySpec, s v1alpha1.Source, now *v1alpha1.Rail, why Absence) *Link {
	i := slices.IndexFunc(before.Rails, func(r v1alpha1.Rail) bool {
		return r.Source == s && r.Switch != nil && r.GUID == now.GUID && keyOf(&r) == keyOf(now)
	})
	if i < 0 || why == Unknown {
		return nil
	}
	b := &before.Rails[i]
	link := &Link{Switch: *b.Switch, SwitchPort: b.SwitchPort, Confidence: b.Confidence}
	if why == Unavailable {
		link.Confidence = min(link.Confidence, Remembered)
	}
	return link
}

// since returns the start of a rail's current state, nil for states in the first report of a node.
// It is in whole seconds, as the API server keeps it.
func (in *input) since(r *v1alpha1.Rail) *metav1.Time {
	for i := range in.before.Rails {
		if b := &in.before.Rails[i]; keyOf(b) == keyOf(r) && unchanged(b, r) {
			return b.Since
		}
	}
	if len(in.before.Rails) == 0 {
		return nil
	}
	return new(metav1.NewTime(in.now.UTC().Truncate(time.Second)))
}

// unchanged reports whether a cable is as it was. That a source now knows where
// it ends does not date when it was plugged in.
func unchanged(before, now *v1alpha1.Rail) bool {
	switch {
	case before.GUID != now.GUID, (before.LinkState == v1alpha1.LinkActive) != (now.LinkState == v1alpha1.LinkActive):
		return false
	case before.Switch == nil:
		return true
	}
	return now.Switch != nil && same(*before.Switch, *now.Switch) &&
		(before.SwitchPort == now.SwitchPort || before.Source != now.Source)
}
