package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// TestSharesThatNothingLimitsAreReported: the pod gets an Event, once, also over a
// restart of the agent, and its annotation has it.
func TestSharesThatNothingLimitsAreReported(t *testing.T) {
	none := enforce.Choice{Enforced: enforce.Enforced{Memory: config.EnforceNone, Compute: config.EnforceNone}}
	r := newRig(t, "dgx-h100", func(o *Options) { o.Limiter, o.Generator = chooser{choice: none}, anyNodes{} })
	r.configure("mode: sgpu\nsgpu: {gpus: [0, 1]}\n")
	r.run()
	r.list(slots, 32, 0)
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	const event = "default/a SharesNotEnforced: nothing keeps container main within its share of memory and compute, which is only counted: " +
		"the node has no enforcer for it (sgpu.enforce)"
	r.api.Wait(t, "the Event", func() bool { return has(r.api.warnings, event) })
	until(t, "the annotation", func() bool { return len(r.api.boundOf("a")) > 0 })
	bound, err := allocation.ParseBound(r.api.boundOf("a")[0])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"memory", "compute"}, bound.Containers["main"].NotEnforced); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
	r.again(t)
	r.list(slots, 32, 0)
	if err := r.consumer("b", "10/4", nil); err != nil {
		t.Fatal(err)
	}
	r.api.Wait(t, "the next pod's Event", func() bool { return has(r.api.warnings, "default/b SharesNotEnforced") })
	r.api.Mu.Lock()
	defer r.api.Mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(r.api.warnings), func(w string) bool { return !strings.HasPrefix(w, "default/a SharesNotEnforced") })
	if len(all) != 1 {
		t.Errorf("%d Events on one pod: %q", len(all), all)
	}
}
