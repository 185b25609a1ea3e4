package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// On a node that shares GPUs without CDI, the report, the metrics and the Node show the
// cause.
func TestSharesWithoutCDI(t *testing.T) {
	const why = "mode is sgpu, and no share is served: --device-list-strategy is envvar"
	r := newRig(t, "dgx-h100", func(o *Options) {
		o.Strategy, o.Generator = resource.Envvar, anyNodes{}
	})
	r.configure("mode: sgpu\nsgpu: {gpus: [0]}\n")
	r.run()
	r.list(gpus, 7, 0)
	r.api.Wait(t, "the Event", func() bool { return has(r.api.notices, "NothingToOffer nvidia.com/sgpu: "+why) })
	r.api.Wait(t, "the condition", func() bool {
		return slices.ContainsFunc(r.api.conditions, func(c health.Condition) bool { return !c.True && strings.Contains(c.Message, why) })
	})
	problem := func() bool {
		return slices.ContainsFunc(r.report().Problems, func(p report.Problem) bool {
			return p.Name == problemShares && strings.HasPrefix(p.Reason, why)
		})
	}
	if !problem() {
		t.Errorf("problems %v", r.report().Problems)
	}
	until(t, "the metric", func() bool { return r.samples("heddle_unavailable")["NothingToOffer nvidia.com/sgpu"] == 1 })
	if diff := cmp.Diff([]string{slots, vcore, vmemory}, r.report().Unserved); diff != "" || r.resources.all()[slots] != nil {
		t.Errorf("resources that are not served (-want +got):\n%s", diff)
	}

	r.configure("")
	r.list(gpus, 8, 0)
	until(t, "all is well", func() bool { return !problem() && len(r.samples("heddle_unavailable")) == 0 })
}

// noSpec is a driver for which no CDI spec can be made.
type noSpec struct{}

func (noSpec) Generate(*machine.Machine) (*devgpu.Edits, error) {
	return nil, errors.New("libcuda.so.580.159.04: not found")
}

func (noSpec) Fingerprint() string { return "" }

// Without a spec of the driver no container with a GPU can be created, so none is offered,
// and the reason is shown. The older way needs none.
func TestGPUsWithoutASpec(t *testing.T) {
	r := newRig(t, "dgx-h100", func(o *Options) { o.Generator = noSpec{} }).run()
	r.list(gpus, 0, 8)
	r.list(hcas, 512, 0)
	r.api.Wait(t, "the condition", func() bool {
		return slices.ContainsFunc(r.api.conditions, func(c health.Condition) bool {
			return !c.True && strings.Contains(c.Message, "libcuda.so.580.159.04: not found")
		})
	})
	newRig(t, "dgx-h100", func(o *Options) { o.Generator, o.Strategy = noSpec{}, resource.Envvar }).run().list(gpus, 8, 0)
}
