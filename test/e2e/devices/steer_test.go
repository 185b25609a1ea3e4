//go:build e2e && linux

package devices

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// TestGPUsByUUID: a pod may name the GPUs that it wants and those that it does not. The kubelet
// does not name the pod when it asks, so that this is a guess where several pods
// start at once; a UUID that the node does not have is reported on the pod, with
// those that it has.
func TestGPUsByUUID(t *testing.T) {
	r := dgx(t)
	m := r.machine(t)
	all := make([]string, len(m.GPUs))
	for i := range m.GPUs {
		all[i] = m.GPUs[i].UUID
	}
	domains := wellknown.DefaultDomains()
	start := func(name, key, value string) *seen {
		p := r.pod(name, box{gpus: 2, hcas: 2})
		p.Annotations = map[string]string{key: value}
		r.run(t, p)
		return r.has(t, name, "app", 2, 2)
	}
	gets := func(s *seen, gpus ...int) {
		t.Helper()
		want := []string{all[gpus[0]], all[gpus[1]]}
		slices.Sort(want)
		if diff := cmp.Diff([][]string{want, first(nearest(m, gpus))}, [][]string{s.GPUs, s.HCAs}); diff != "" {
			t.Errorf("GPUs and HCAs (-want +got):\n%s", diff)
		}
	}
	gets(start("wants", domains.UseGPUUUID(), all[6]+","+all[1]), 1, 6)
	gets(start("shuns", domains.NoUseGPUUUID(), strings.Join(all[:5], ",")), 5, 7)
	start("errs", domains.UseGPUUUID(), "GPU-of-another-node")
	r.waitEvent(t, "errs", wellknown.EventSelectorNotHonored,
		`the node has no GPU "GPU-of-another-node"; it has `+strings.Join(all, ", "))
	if reported := slices.Concat(r.events(t, "wants", wellknown.EventSelectorNotHonored), r.events(t, "shuns", wellknown.EventSelectorNotHonored)); len(reported) > 0 {
		t.Errorf("pods that got what they asked for have Events %q", reported)
	}
}
