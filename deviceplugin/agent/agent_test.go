package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/names"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
	"github.com/heddle-dev/heddle/deviceplugin/gpu"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/test/kubelet"
)

func resourceList(limits map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, n := range limits {
		list[corev1.ResourceName(name)] = resource.MustParse(n)
	}
	return list
}

func TestPodGetsTheHCAsBesideItsGPUs(t *testing.T) {
	r := newRig(t, "dgx-h100")
	if got := r.Ready(); !strings.Contains(got, gpus+" waits for the driver's CDI spec") {
		t.Errorf("before the first round Ready says %q", got)
	}
	r.run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	if got := r.Ready(); got != "" {
		t.Errorf("Ready says %q", got)
	}
	if got := r.Alive(); got != "" {
		t.Errorf("Alive says %q", got)
	}
	held := r.admit("train", map[string]int{gpus: 4, hcas: 4})
	names := r.start("train")
	report := r.report()
	if len(report.Bindings) != 1 {
		t.Fatalf("bindings %+v, want one", report.Bindings)
	}
	b := report.Bindings[0]
	if diff := cmp.Diff(held[gpus], b.GPUs); diff != "" || b.Namespace != "default" || b.Pod != "train" || b.Container != "main" {
		t.Errorf("binding %+v\n%s", b, diff)
	}
	// The class is that of the HCA that is farthest from the GPUs.
	if len(b.HCAs) != 4 || b.Class != "PIX" && b.Class != "PXB" {
		t.Errorf("HCAs %v of class %s", b.HCAs, b.Class)
	}
	for _, name := range b.CDINames {
		if !slices.Contains(names, name) {
			t.Errorf("the runtime was not given %s: %v", name, names)
		}
	}
	want := map[string]float64{"nvidia.com/gpu": 1, "rdma/hca_shared_devices_ib": 1}
	if diff := cmp.Diff(want, r.samples("heddle_bindings")); diff != "" {
		t.Errorf("heddle_bindings (-want +got):\n%s", diff)
	}
}

// samples are those of a metric, by the values of its labels.
func (r *rig) samples(name string) map[string]float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			var values []string
			for _, label := range metric.GetLabel() {
				values = append(values, label.GetValue())
			}
			found[strings.Join(values, " ")] = metric.GetGauge().GetValue()
		}
	}
	return found
}

// report asks as doctor does.
func (r *rig) report() report.Report {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, report.Path, nil))
	var got report.Report
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		r.t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return got
}

func TestReportOfEveryResource(t *testing.T) {
	r := newRig(t, "one-dead-port").run()
	r.list(gpus, 7, 1)
	r.list(hcas, 384, 64)
	got := r.report()
	for i := range got.Resources {
		if got.Resources[i].Reason == "" || got.Resources[i].Fault != "" {
			t.Errorf("%+v", got.Resources[i])
		}
		got.Resources[i].Reason = ""
	}
	want := []report.Resource{
		{Name: gpus, Kind: report.KindGPU, Registered: true, Capacity: 8, Allocatable: 7},
		{Name: hcas, Kind: report.KindHCA, Registered: true, Capacity: 448, Allocatable: 384},
	}
	if diff := cmp.Diff(want, got.Resources); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	if len(got.GPUs) != 8 || got.Node != node {
		t.Errorf("node %q, GPUs %v", got.Node, got.GPUs)
	}
	// No device node was made for the replayed GPUs.
	if len(got.Problems) != 1 || got.Problems[0].Name != "driver" {
		t.Errorf("problems %+v", got.Problems)
	}
}

func TestReloadAddsAndRemovesAResource(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	held := r.admit("train", map[string]int{hcas: 2})[hcas]
	r.start("train")
	before := r.report().Bindings
	r.configure("rdma: {resources: [{name: rdma/other, sharers: 2}]}")
	r.list("rdma/other", 16, 0)
	// What a pod holds stays listed, unhealthy; the rest follows in a minute.
	state := r.list(hcas, 0, 512)
	for _, id := range held {
		if !slices.Contains(state.Unhealthy, id) {
			t.Errorf("%s, which a pod holds, left the list", id)
		}
	}
	// The container starts again, with what it had.
	r.start("train")
	if diff := cmp.Diff(before, r.report().Bindings); diff != "" {
		t.Errorf("other devices after the reload:\n%s", diff)
	}
	for _, res := range r.report().Resources {
		if res.Former != (res.Name == hcas) || res.Name == hcas && (res.Reason != "it is not configured any more" || res.Withdrawn != 512) {
			t.Errorf("%+v", res)
		}
	}
	r.configure("")
	r.list(hcas, 512, 0)
	r.list("rdma/other", 0, 16)
}

// TestRenamedGPUs: a GPU is in one resource at a time. The kubelet keeps
// accounts by resource, and would give what a pod has under the old name to
// another pod under the new one.
func TestRenamedGPUs(t *testing.T) {
	const renamed = "example.com/gpu"
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	held := r.admit("train", map[string]int{gpus: 2, hcas: 1})
	r.start("train")
	before := r.report().Bindings
	r.configure("resources: {gpu: " + renamed + "}\nrdma: {resources: []}")
	// For a minute the kubelet may give out what it had when the name changed.
	r.list(renamed, 0, 8)
	r.list(gpus, 0, 8)
	if got := r.kubelet.State(renamed); got.Updates != 1 {
		t.Errorf("%d lists under the new name, want one", got.Updates)
	}
	r.api.wait(t, "the condition", func() bool {
		last := r.api.conditions[len(r.api.conditions)-1]
		return last.Reason == string(Draining) &&
			strings.Contains(last.Message, "container main of default/train has it as nvidia.com/gpu")
	})
	// A plugin that starts with the new name knows by the records who has what,
	// and serves the old names for those that have them.
	r.again(t)
	state := r.list(renamed, 6, 2)
	if diff := cmp.Diff(held[gpus], state.Unhealthy); diff != "" {
		t.Errorf("what the pod has is not what is held back (-want +got):\n%s", diff)
	}
	r.list(gpus, 0, 2)
	r.list(hcas, 0, 1)
	other := r.admit("other", map[string]int{renamed: 6})[renamed]
	for _, id := range held[gpus] {
		if slices.Contains(other, id) {
			t.Errorf("two pods have %s", id)
		}
	}
	r.start("other")
	r.start("train")
	after := slices.DeleteFunc(r.report().Bindings, func(b report.Binding) bool { return b.Pod == "other" })
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("other devices under the new configuration:\n%s", diff)
	}
}

func TestModeSGPUWithdrawsCards(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.api.wait(t, "a condition", func() bool { return len(r.api.conditions) > 0 })
	r.configure("mode: sgpu")
	r.list(gpus, 0, 8)
	if got := r.shortages(r.machine(), r.config()); len(got) > 0 {
		t.Errorf("that GPUs are shared is a shortage: %v", got)
	}
}

func TestLostGPUReachesTheListAndTheNode(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	// The condition comes before the annotation: a GPU lost between the two
	// would be in the first annotation already.
	r.api.wait(t, "that all is well", func() bool {
		return len(r.api.conditions) > 0 && r.api.conditions[0].True && len(r.api.annotations) > 0
	})
	r.alter(func(m *machine.Machine) {
		m.GPUs[3].Health = machine.Health{State: machine.Lost, Reason: "XID 79"}
	})
	r.list(gpus, 7, 1)
	r.api.wait(t, "the condition", func() bool {
		last := r.api.conditions[len(r.api.conditions)-1]
		return !last.True && last.Reason == string(health.Lost) && strings.Contains(last.Message, "GPU 3: ")
	})
	r.api.wait(t, "that seven are free", func() bool {
		last := r.api.annotations[len(r.api.annotations)-1]
		free, err := allocation.ParseFreeGPUs(last[names.FreeGPUs])
		return err == nil && len(free.Free) == 7 && free.Held == 0 && !strings.Contains(last[names.GPUTopology], `"8":`) &&
			!slices.Contains(free.Free, allocation.FreeGPU{UUID: r.machine().GPUs[3].UUID})
	})
	if diff := cmp.Diff(map[string]float64{"Lost nvidia.com/gpu": 1}, r.samples("heddle_unavailable")); diff != "" {
		t.Errorf("heddle_unavailable (-want +got):\n%s", diff)
	}
}

func TestDevicesThatFellOffTheBusAreMissed(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.configure("health: {hcaDownAfter: 0s}")
	r.run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	r.api.wait(t, "that all is well", func() bool { return len(r.api.conditions) > 0 && r.api.conditions[0].True })
	name := ""
	r.alter(func(m *machine.Machine) {
		at := slices.IndexFunc(m.HCAs, func(h machine.HCA) bool { return h.Role == machine.RoleFabric })
		name = m.HCAs[at].Name
		m.HCAs = slices.Delete(m.HCAs, at, at+1)
	})
	r.api.wait(t, "the condition", func() bool {
		last := r.api.conditions[len(r.api.conditions)-1]
		return last.Reason == string(health.Gone) && strings.Contains(last.Message, name)
	})
}

func TestNothingToOfferIsTold(t *testing.T) {
	r := newRig(t, "soft-rdma-only").run()
	r.list(gpus, 2, 0)
	r.api.wait(t, "the condition and an Event", func() bool {
		return len(r.api.conditions) > 0 && r.api.conditions[0].Reason == string(NothingToOffer) &&
			has(r.api.notices, "NothingToOffer "+hcas+": no HCA is selected: rxe0")
	})
}

func TestUnchangedNodeIsNotToldAgain(t *testing.T) {
	r := newRig(t, "dgx-h100", func(o *Options) { o.Interval = 10 * time.Millisecond }).run()
	r.list(gpus, 8, 0)
	r.api.wait(t, "an annotation", func() bool { return len(r.api.annotations) > 0 })
	began := r.beat.Load()
	for i := 0; i < 20; {
		if now := r.beat.Load(); now != began {
			began = now
			i++
		}
	}
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	if len(r.api.conditions) != 1 || len(r.api.annotations) != 1 {
		t.Errorf("%d conditions and %d annotations for one state", len(r.api.conditions), len(r.api.annotations))
	}
}

// hung is a driver that never answers.
type hung struct{ end <-chan struct{} }

func (h hung) Generate(*machine.Machine) (*gpu.Generated, error) {
	<-h.end
	return nil, errors.New("ended")
}

func TestNothingSlowHoldsBackTheList(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.api.hang = true
	r.run()
	// The first registration waits a second for the API server, once.
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	slow := newRig(t, "dgx-h100", func(o *Options) { o.Generator = hung{end} }).run()
	slow.list(hcas, 512, 0)
	if got := slow.Ready(); got != gpus+" waits for the driver's CDI spec" {
		t.Errorf("Ready says %q", got)
	}
	for _, r := range []*rig{r, slow} {
		port := func(state string) func(*machine.Machine) {
			return func(m *machine.Machine) {
				at := slices.IndexFunc(m.HCAs, func(h machine.HCA) bool { return h.Role == machine.RoleFabric })
				m.HCAs[at].Ports[0].State = state
			}
		}
		r.configure("health: {hcaDownAfter: 0s}")
		began := time.Now()
		r.alter(port(machine.PortDown))
		r.list(hcas, 448, 64)
		// Nobody waited until a call that hangs was given up.
		if took := time.Since(began); took >= publishTimeout {
			t.Errorf("a dead port was in the list after %s", took)
		}
	}
}

func TestClaimedResourceIsLeftAlone(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.api.claimed = map[string]string{hcas: "DeviceClass hca"}
	r.run()
	r.list(gpus, 8, 0)
	r.api.wait(t, "the condition", func() bool {
		at := slices.IndexFunc(r.api.conditions, func(c health.Condition) bool { return c.Reason == string(ServedByOthers) })
		return at >= 0 && strings.Contains(r.api.conditions[at].Message, hcas+": it is left to DeviceClass hca")
	})
	if got := r.Ready(); got != hcas+" is served by DeviceClass hca" {
		t.Errorf("Ready says %q", got)
	}
	if got := r.kubelet.State(hcas); got.Registrations > 0 {
		t.Errorf("registered all the same: %+v", got)
	}
}

func TestLabelsThatChooseTheConfiguration(t *testing.T) {
	r := newRig(t, "dgx-h100")
	c, err := config.Parse(map[string][]byte{
		"version": []byte("v1"), "cluster-config": nil,
		"nodes-config": []byte("- nodeSelector: {pool: shared}\n  mode: sgpu\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.configs.set(c)
	r.api.labels = nil
	r.run()
	if got := r.kubelet.State(gpus); got.Registrations > 0 {
		t.Errorf("served before the labels are known: %+v", got)
	}
	label := func(labels map[string]string) {
		r.api.mu.Lock()
		r.api.labels = labels
		r.api.mu.Unlock()
		signal(r.api.changed)
	}
	label(map[string]string{"pool": "shared"})
	r.list(hcas, 512, 0)
	if got := r.kubelet.State(gpus); len(got.Healthy)+len(got.Unhealthy) > 0 {
		t.Errorf("GPUs were listed that are shared: %+v", got)
	}
	label(nil) // Somebody deletes the Node; the kubelet makes it anew.
	label(map[string]string{})
	r.list(gpus, 8, 0)
}

func TestKubeletThatRestarts(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	r.admit("train", map[string]int{gpus: 2, hcas: 2})
	r.start("train")
	before := r.report().Bindings
	r.kubelet.Restart()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	r.start("train")
	if diff := cmp.Diff(before, r.report().Bindings); diff != "" {
		t.Errorf("other devices after the restart:\n%s", diff)
	}
}

func TestAgentThatRestarts(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	r.admit("train", map[string]int{gpus: 2, hcas: 2})
	r.start("train")
	before := r.report().Bindings
	r.again(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, resource := range []string{gpus, hcas} {
		r.kubelet.Wait(ctx, resource, func(s kubelet.State) bool { return s.Registrations == 2 && len(s.Unhealthy) == 0 })
	}
	r.start("train")
	if diff := cmp.Diff(before, r.report().Bindings); diff != "" {
		t.Errorf("other devices after the restart:\n%s", diff)
	}
}
