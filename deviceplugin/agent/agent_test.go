package agent

import (
	"encoding/json"
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
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/report"
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
	if got := r.Ready(); !strings.Contains(got, gpus+": waits for the driver's CDI spec") {
		t.Errorf("before the first round Ready is %q", got)
	}
	r.run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	if got := r.Ready(); got != "" {
		t.Errorf("Ready is %q", got)
	}
	if got := r.Alive(); got != "" {
		t.Errorf("Alive is %q", got)
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
			found[strings.Join(values, " ")] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
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
		if got.Resources[i].Reason == "" || got.Resources[i].LastError != "" {
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
	if len(got.GPUIndices) != 8 || got.Node != node {
		t.Errorf("node %q, GPUs %v", got.Node, got.GPUIndices)
	}
	// No device node was made for the replayed GPUs.
	if len(got.Problems) != 1 || got.Problems[0].Name != "driver" {
		t.Errorf("problems %+v", got.Problems)
	}
}

func TestLostGPUReachesTheListAndTheNode(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	// The condition comes before the annotation: a GPU lost between the two
	// would be in the first annotation already.
	r.api.Wait(t, "that all is well", func() bool {
		return len(r.api.conditions) > 0 && r.api.conditions[0].True && len(r.api.annotations) > 0
	})
	r.alter(func(m *machine.Machine) {
		m.GPUs[3].Health = machine.Health{State: machine.Lost, Reason: "XID 79"}
	})
	r.list(gpus, 7, 1)
	r.api.Wait(t, "the condition", func() bool {
		last := r.api.conditions[len(r.api.conditions)-1]
		return !last.True && last.Reason == string(health.Lost) && strings.Contains(last.Message, "GPU 3: ")
	})
	r.api.Wait(t, "that seven are free", func() bool {
		last := r.api.annotations[len(r.api.annotations)-1]
		free, err := allocation.ParseFreeGPUs(last[wellknown.FreeGPUs])
		return err == nil && len(free.Free) == 7 && free.Held == 0 && !strings.Contains(last[wellknown.GPUTopology], `"8":`) &&
			!slices.Contains(free.Free, allocation.FreeGPU{UUID: r.last.Load().Inventory.Machine.GPUs[3].UUID})
	})
	if diff := cmp.Diff(map[string]float64{"Lost nvidia.com/gpu": 1}, r.samples("heddle_unavailable")); diff != "" {
		t.Errorf("heddle_unavailable (-want +got):\n%s", diff)
	}
}

func TestNothingToOfferIsReported(t *testing.T) {
	r := newRig(t, "soft-rdma-only").run()
	r.list(gpus, 2, 0)
	r.api.Wait(t, "the condition and an Event", func() bool {
		return len(r.api.conditions) > 0 && r.api.conditions[0].Reason == string(publish.NothingToOffer) &&
			has(r.api.notices, "NothingToOffer "+hcas+": no HCA is selected: rxe0")
	})
}

func TestUnchangedNodeIsReportedOnce(t *testing.T) {
	r := newRig(t, "dgx-h100", func(o *Options) { o.Interval = 10 * time.Millisecond }).run()
	r.list(gpus, 8, 0)
	r.api.Wait(t, "the annotations", func() bool {
		n := len(r.api.annotations)
		return n > 0 && r.api.annotations[n-1][wellknown.FreeGPUs] != ""
	})
	rounds := func(n int) {
		began := r.beat.Load()
		for n > 0 {
			if now := r.beat.Load(); now != began {
				began = now
				n--
			}
		}
	}
	written := func() (conditions, annotations int) {
		r.api.Mu.Lock()
		defer r.api.Mu.Unlock()
		return len(r.api.conditions), len(r.api.annotations)
	}
	rounds(5) // The first rounds may still see the daemon start.
	conditions, annotations := written()
	rounds(20)
	if c, a := written(); c != conditions || a != annotations || c != 1 {
		t.Errorf("%d conditions and %d annotations after %d and %d for one state: %v",
			c, a, conditions, annotations, r.api.annotations)
	}
}
