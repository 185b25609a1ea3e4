package worker

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker/cable"
)

// remember is what a pass came to, and the rails that were there before it and
// are not now: an HCA whose driver is loaded anew comes back where it was.
func remember(before, now *v1alpha1.NodeTopologySpec) v1alpha1.NodeTopologySpec {
	memory := *now
	memory.Rails = slices.Clone(now.Rails)
	for i := range before.Rails {
		b := &before.Rails[i]
		if len(memory.Rails) < maxMemory && !slices.ContainsFunc(now.Rails, func(r v1alpha1.Rail) bool {
			return r.ID == b.ID && r.Port == b.Port && r.Netdev == b.Netdev
		}) {
			memory.Rails = append(memory.Rails, *b)
		}
	}
	return memory
}

// maxMemory bounds the rails that are remembered.
const maxMemory = 256

// recall is what the source said before, if it is in doubt now. A card of
// another GUID in the slot is another end.
func recall(
	before *v1alpha1.NodeTopologySpec, s v1alpha1.Source, now *v1alpha1.Rail, doubt cable.Doubt,
) (cable.End, bool) {
	if doubt == cable.Silent {
		return cable.End{}, false
	}
	for i := range before.Rails {
		r := &before.Rails[i]
		if r.Source != s || r.Switch == nil || r.GUID != now.GUID || r.ID != now.ID || r.Port != now.Port ||
			r.Netdev != now.Netdev {
			continue
		}
		end := cable.End{Switch: *r.Switch, SwitchPort: r.SwitchPort, Confidence: r.Confidence}
		if doubt == cable.Blind {
			end.Confidence = min(end.Confidence, remembered)
		}
		return end, true
	}
	return cable.End{}, false
}

// since is when a rail became what it is. What the first report of a node says
// has been so for nobody knows how long. It is in whole seconds, as the API
// server keeps it.
func (in *input) since(r *v1alpha1.Rail) *metav1.Time {
	for i := range in.before.Rails {
		if b := &in.before.Rails[i]; b.ID == r.ID && b.Port == r.Port && b.Netdev == r.Netdev && unchanged(b, r) {
			return b.Since
		}
	}
	if len(in.before.Rails) == 0 {
		return nil
	}
	return new(metav1.NewTime(in.now.UTC().Truncate(time.Second)))
}

// unchanged tells whether nobody touched a cable. That somebody now knows where
// it ends says nothing about when it was plugged in.
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
