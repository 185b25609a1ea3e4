package agent

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/test/machines"
)

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// On a node that shares GPUs without CDI, the report, the metrics and the Node
// show the cause, and the log has it once.
func TestSharesWithoutCDI(t *testing.T) {
	const why = "mode is sgpu, and no share is served: --device-list-strategy is envvar"
	log := &lines{}
	r := newRig(t, "dgx-h100", func(o *Options) {
		o.Strategy, o.Generator, o.Log = gpu.Envvar, anyNodes{}, slog.New(slog.NewTextHandler(log, nil))
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
	if got := log.count("shares of GPUs are not served"); got != 1 {
		t.Errorf("the log has the message %d times", got)
	}
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
	newRig(t, "dgx-h100", func(o *Options) { o.Generator, o.Strategy = noSpec{}, gpu.Envvar }).run().list(gpus, 8, 0)
}

// isShortOf checks that a node is short of nothing, and of a resource once the bus
// has a function without a driver.
func (r *rig) isShortOf(resource string, function machine.PCIFunction) {
	r.t.Helper()
	ready := func() bool { return len(r.api.conditions) > 0 && r.api.conditions[len(r.api.conditions)-1].True }
	r.api.Wait(r.t, "HeddleReady", ready)
	if got := r.samples("heddle_unavailable"); len(got) > 0 || len(r.api.notices) > 0 {
		r.t.Errorf("heddle_unavailable %v, Events %q", got, r.api.notices)
	}
	r.alter(func(m *machine.Machine) { m.PCI = append(m.PCI, function) })
	r.api.Wait(r.t, "that a function without a driver is missed", func() bool { return !ready() })
	if got := r.samples("heddle_unavailable"); got["NothingToOffer "+resource] != 1 {
		r.t.Errorf("heddle_unavailable %v", got)
	}
}

// A node without GPUs, whose HCAs are the cluster's ordinary network, is short of
// nothing; one whose GPUs have no driver is.
func TestCPUOnlyNodeIsReady(t *testing.T) {
	r := newRig(t, "amd-epyc-no-gpu")
	r.configure("mode: sgpu\n")
	r.run()
	r.list(gpus, 0, 0)
	r.list(slots, 0, 0)
	r.isShortOf(gpus, machine.PCIFunction{Address: "0000:18:00.0", Class: "0x030200", Vendor: "0x10de"})
}

// A node whose GPUs have no HCA beside them, or one for management only, is short
// of nothing under the default resources; one whose InfiniBand adapter has no driver
// is.
func TestNodeWithoutHCAsIsReady(t *testing.T) {
	for name, hca := range map[string][]machine.HCA{"none": nil, "management": machines.Load(t, "amd-epyc-no-gpu").HCAs} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "soft-rdma-only", func(o *Options) {
				m := *o.Source.Machine()
				m.HCAs = hca
				o.Source.(source).set(&m)
			})
			r.run()
			r.list(gpus, 2, 0)
			r.list(hcas, 0, 0)
			r.isShortOf(hcas, machine.PCIFunction{Address: "0000:18:00.0", Class: "0x020700", Vendor: "0x15b3"})
		})
	}
}
