package worker

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// remember is what a pass came to, and the rails that were there before it and
// are not now: an HCA comes back where it was when its driver is loaded again.
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

// lastKnown is the link that the source reported before, if there is a reason
// why it reports none now. An HCA of another GUID in the slot is another port.
func lastKnown(before *v1alpha1.NodeTopologySpec, s v1alpha1.Source, now *v1alpha1.Rail, why Absence) *Link {
	i := slices.IndexFunc(before.Rails, func(r v1alpha1.Rail) bool {
		return r.Source == s && r.Switch != nil && r.GUID == now.GUID && keyOf(&r) == keyOf(now)
	})
	if i < 0 || why == Unknown {
		return nil
	}
	link := &Link{Switch: *before.Rails[i].Switch, SwitchPort: before.Rails[i].SwitchPort, Confidence: before.Rails[i].Confidence}
	if why == Unavailable {
		link.Confidence = min(link.Confidence, remembered)
	}
	return link
}

// since is when a rail became what it is; unknown for what is in the first
// report of a node. It is in whole seconds, as the API server keeps it.
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
