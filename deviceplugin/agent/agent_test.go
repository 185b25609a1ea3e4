package agent

import (
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/connectivity"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/test/docs"
)

func resourceList(limits map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, n := range limits {
		list[corev1.ResourceName(name)] = apiresource.MustParse(n)
	}
	return list
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

// hung is a driver that never answers.
type hung struct{ end <-chan struct{} }

func (h hung) Generate(*machine.Machine) (*devgpu.Edits, error) {
	<-h.end
	return nil, errors.New("ended")
}

func (hung) Fingerprint() string { return "" }

func TestNothingSlowHoldsBackTheList(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.api.Hang = true
	r.run()
	// The first registration waits a second for the API server, once.
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	slow := newRig(t, "dgx-h100", func(o *Options) { o.Generator = hung{end} }).run()
	slow.list(hcas, 512, 0)
	if got := slow.Ready(); got != gpus+": waits for the driver's CDI spec" {
		t.Errorf("Ready is %q", got)
	}
	for _, r := range []*rig{r, slow} {
		port := func(state string) func(*machine.Machine) {
			return func(m *machine.Machine) {
				at := slices.IndexFunc(m.HCAs, func(h machine.HCA) bool { return h.Role == machine.RoleFabric })
				m.HCAs[at].Ports[0].State = state
			}
		}
		r.configure("health: {downAfter: 0s}")
		r.alter(port(machine.PortDown))
		r.list(hcas, 448, 64)
	}
}

// A kubelet that comes late, after attempts to reach it have failed, gets GPUs
// as soon as it answers.
func TestLateKubelet(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.kubelet.Stop()
	r.run()
	for state := r.conn.GetState(); state != connectivity.TransientFailure; state = r.conn.GetState() {
		if !r.conn.WaitForStateChange(t.Context(), state) {
			t.Fatal("PodResources was never looked for")
		}
	}
	r.kubelet.Up()
	r.list(hcas, 512, 0)
	r.list(gpus, 8, 0)
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

var update = flag.Bool("update", false, "write "+docs.Observability)

// An agent that serves a resource has the metrics of its parts and of the resource.
func TestDocumentedMetrics(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.admit("train", map[string]int{gpus: 1})
	r.start("train")
	docs.Section(t, "../..", docs.Observability, "heddle-device-plugin", docs.Metrics(t, r.registry), *update)
	docs.Section(t, "../..", docs.Observability, "heddle-device-plugin-pods", docs.Metrics(t, r.pods), *update)
}

// What everyone can read names no pod, whatever a container has.
func TestMetricsWithoutPods(t *testing.T) {
	r, _ := sharer(t, "gpus: [0, 1]")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	const name = "a-name-of-a-pod"
	if err := r.consumer(name, "30/4", nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		of    string
		from  prometheus.Gatherer
		names bool
	}{{"everyone's", r.registry, false}, {"the node's", r.pods, true}} {
		families, err := tt.from.Gather()
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for _, family := range families {
			if strings.Contains(family.String(), name) {
				named++
				if !tt.names {
					t.Errorf("%s metric %s names the pod", tt.of, family.GetName())
				}
			}
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if key := l.GetName(); !tt.names && (key == "pod" || key == "namespace" || key == "container") {
						t.Errorf("%s metric %s has the label %s", tt.of, family.GetName(), key)
					}
				}
			}
		}
		if tt.names && named < 3 {
			t.Errorf("%d of %d metrics of %s name the pod", named, len(families), tt.of)
		}
	}
}

// A kubelet whose socket is absent for longer than a restart takes is reported, as with a directory
// that no kubelet serves.
func TestKubeletSocketAbsent(t *testing.T) {
	r := newRig(t, "dgx-h100", func(o *Options) { o.patience = time.Millisecond })
	r.run()
	r.list(gpus, 8, 0)
	r.kubelet.Stop()
	if err := os.Remove(r.kubelet.Socket()); err != nil {
		t.Fatal(err)
	}
	r.waitNotice(wellknown.EventKubeletAbsent + " no kubelet listens on " + r.kubelet.Socket())
}
