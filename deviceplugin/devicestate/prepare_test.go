package devicestate

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	testkubelet "github.com/heddle-dev/heddle/test/kubelet"
)

func TestContainerGetsGPUsAndHCAsTogether(t *testing.T) {
	for _, first := range []string{gpus, hcas} {
		t.Run(first+" first", func(t *testing.T) {
			r := newRig(t)
			p := pod("a")
			r.spec("a", corev1.Container{Name: "main"})
			// The kubelet chose HCAs of the other NUMA node.
			want := asks{gpus: r.gpuIDs(1, 3), hcas: r.deviceIDs("mlx5_6", "mlx5_9")}
			names := r.allocate(p, "main", want)
			if _, err := r.enter(names); err == nil || !strings.Contains(err.Error(), "unresolvable") {
				t.Fatalf("before PreStart: %v", err)
			}
			second := gpus
			if first == gpus {
				second = hcas
			}
			for _, resource := range []string{first, second} {
				if err := r.Prepare(t.Context(), resource, want[resource]); err != nil {
					t.Fatal(err)
				}
			}
			got := r.mustEnter(names)
			uuids := r.gpuIDs(1, 3)
			wantEnv := []string{
				"HEDDLE_GPUS=" + strings.Join(uuids, ","), "HEDDLE_HCAS=mlx5_3,mlx5_5",
				"NCCL_IB_HCA==mlx5_3:1,mlx5_5:1", "NVIDIA_VISIBLE_DEVICES=void", "UCX_NET_DEVICES=mlx5_3:1,mlx5_5:1",
			}
			if diff := cmp.Diff(wantEnv, got.Env); diff != "" {
				t.Errorf("env (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"rdma_cm", "uverbs1", "uverbs3"}, got.Nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			h := hcaNamed(r.machine, "mlx5_3")
			wantHCA := cdi.DeviceHCA{
				ID: h.PCI, Name: "mlx5_3", PCI: h.PCI, Resource: hcas, Ports: []int{1}, LinkLayer: "InfiniBand",
				RateGbps: new(400.0), Rail: 1, GPU: uuids[0], Class: "PIX", Nodes: []string{"/dev/infiniband/uverbs1"},
			}
			if diff := cmp.Diff(wantHCA, got.Devices.HCAs[0]); diff != "" {
				t.Errorf("JSON, first HCA (-want +got):\n%s", diff)
			}
			wantGPU := cdi.DeviceGPU{UUID: uuids[1], Index: 3, PCI: r.machine.GPUs[3].PCI, HCA: "mlx5_5", Class: "PIX"}
			if diff := cmp.Diff(wantGPU, got.Devices.GPUs[1]); diff != "" {
				t.Errorf("JSON, second GPU (-want +got):\n%s", diff)
			}
			wantBinding := []report.Binding{{
				Namespace: "default", Pod: "a", UID: "uid-a", Container: "main", GPUs: slices.Sorted(slices.Values(uuids)),
				HCAs: []string{"mlx5_3", "mlx5_5"}, Class: "PIX", CDINames: names,
				HCAIDs: []string{h.PCI, hcaNamed(r.machine, "mlx5_5").PCI},
			}}
			if diff := cmp.Diff(wantBinding, r.View().Allocations()); diff != "" {
				t.Errorf("bindings (-want +got):\n%s", diff)
			}
			if e := r.specs.takeEvents(); e != nil {
				t.Errorf("events: %v", e)
			}
		})
	}
}

func TestHintsGiveWayToThePod(t *testing.T) {
	env := func(keys ...string) corev1.Container {
		c := corev1.Container{Name: "main"}
		for _, key := range keys {
			c.Env = append(c.Env, corev1.EnvVar{Name: key})
		}
		return c
	}
	from := env()
	from.EnvFrom = []corev1.EnvFromSource{{Prefix: "X_"}}
	always := []string{"HEDDLE_GPUS", "HEDDLE_HCAS", "NVIDIA_VISIBLE_DEVICES"}
	for _, tt := range []struct {
		name       string
		containers []corev1.Container
		want       []string
	}{
		{"it sets neither", []corev1.Container{env("PATH")}, append([]string{"NCCL_IB_HCA", "UCX_NET_DEVICES"}, always...)},
		{"it sets one", []corev1.Container{env("NCCL_IB_HCA")}, append([]string{"UCX_NET_DEVICES"}, always...)},
		{"it sets both, and what cannot be set", []corev1.Container{env("UCX_NET_DEVICES", "NCCL_IB_HCA", "HEDDLE_HCAS")}, always},
		{"it may set them by envFrom", []corev1.Container{from}, always},
		{"another container sets them", []corev1.Container{{Name: "x", Env: env("NCCL_IB_HCA").Env}, env()}, append([]string{"NCCL_IB_HCA", "UCX_NET_DEVICES"}, always...)},
		{"the pod is not known", nil, always},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			if tt.containers != nil {
				r.spec("a", tt.containers...)
			}
			want := asks{gpus: r.gpuIDs(0), hcas: r.deviceIDs("mlx5_0")}
			names := r.allocate(pod("a"), "main", want)
			r.start(want)
			var got []string
			for _, e := range r.mustEnter(names).Env {
				key, _, _ := strings.Cut(e, "=")
				got = append(got, key)
			}
			slices.Sort(got)
			if diff := cmp.Diff(slices.Sorted(slices.Values(tt.want)), got); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
}

// TestInitContainers: they are not in PodResources, and hold what a container
// after them holds too.
func TestInitContainers(t *testing.T) {
	for _, tt := range []struct {
		name      string
		init, app []string
		wantInit  string
		wantApp   string
	}{
		{"the same request", []string{"mlx5_9", "mlx5_10"}, []string{"mlx5_9", "mlx5_10"}, "mlx5_9,mlx5_10", "mlx5_0,mlx5_3"},
		{"a smaller one", []string{"mlx5_9"}, []string{"mlx5_9", "mlx5_10"}, "mlx5_9", "mlx5_0,mlx5_3"},
		{"a greater one", []string{"mlx5_9", "mlx5_10", "mlx5_11"}, []string{"mlx5_9", "mlx5_10"}, "mlx5_9,mlx5_10,mlx5_11", "mlx5_0,mlx5_3"},
		{"only the init container", []string{"mlx5_9"}, nil, "mlx5_9", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 1 })
			r.spec("a", corev1.Container{Name: "main"}, corev1.Container{Name: "init"})
			p := pod("a", testkubelet.Container{Name: "init", Kind: testkubelet.Init}, testkubelet.Container{Name: "main"})
			init, app := asks{hcas: r.deviceIDs(tt.init...)}, asks{gpus: r.gpuIDs(0, 1)}
			if tt.app != nil {
				app[hcas] = r.deviceIDs(tt.app...)
			}
			initNames := r.allocate(p, "init", init)
			appNames := r.allocate(p, "main", app)
			r.start(init)
			if diff := cmp.Diff(tt.wantInit, strings.Join(seenBy(r, initNames).given(), ",")); diff != "" {
				t.Errorf("init container (-want +got):\n%s", diff)
			}
			r.start(app)
			got := seenBy(r, appNames)
			if diff := cmp.Diff(tt.wantApp, strings.Join(got.given(), ",")); diff != "" {
				t.Errorf("container (-want +got):\n%s", diff)
			}
			if got.Devices.Container != "main" || seenBy(r, initNames).Devices.Container != "init" {
				t.Errorf("the JSON files are of %s and %s", got.Devices.Container, seenBy(r, initNames).Devices.Container)
			}
		})
	}
}

func seenBy(r *rig, names map[string]string) *seen {
	s := r.mustEnter(names)
	return &s
}
