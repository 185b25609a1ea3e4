package worker

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// stale lists the silent sources with an old answer in the report.
func (in *input) stale(spec *v1alpha1.NodeTopologySpec) (out []v1alpha1.StaleSource) {
	for _, a := range in.answers {
		if a.Stale == nil || spec.PathSource != a.source && !slices.ContainsFunc(spec.Rails, a.kept) {
			continue
		}
		since := a.Stale.Since
		if since.IsZero() {
			since = in.now // Unless an earlier pass missed it already.
			for _, b := range in.before.Stale {
				if b.Source == a.source {
					since = b.Since.Time
				}
			}
		}
		out = append(out, v1alpha1.StaleSource{
			Source: a.source, Since: metav1.NewTime(since.UTC().Truncate(time.Second)), Reason: a.Stale.Reason,
		})
	}
	return out
}

// kept reports whether an active rail's switch is an old answer of the source.
// One that listens is silent port by port, another as a whole.
func (a *answer) kept(r v1alpha1.Rail) bool {
	why := a.NoLink[keyOf(&r)]
	return r.Source == a.source &&
		(why == Unavailable && r.LinkState == v1alpha1.LinkActive || why == Unknown && !a.Listening)
}

// explain notes why an active Ethernet rail has no switch: a source cannot report the silence of
// LLDP as an error.
func (in *input) explain(r *v1alpha1.Rail, skip func(name, reason string)) {
	if r.Switch != nil || r.Role != string(machine.RoleFabric) || r.LinkLayer != machine.Ethernet ||
		r.LinkState != v1alpha1.LinkActive {
		return
	}
	for _, a := range in.answers {
		if a.source == v1alpha1.SourceLLDP && a.Listening && a.NoLink[keyOf(r)] != Pending {
			skip(fmt.Sprintf("%s port %d", cmp.Or(r.Netdev, r.HCA), r.Port), noFrames)
		}
	}
}

const noFrames = "no LLDP frame from the switch, and no other source knows where the cable ends: " +
	"turn LLDP on at the switch and off in the NIC's firmware, or name the switch in the static file"
