package resource_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/discovery/capacity"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
)

func TestGPUs(t *testing.T) {
	faulty := machineWith(4)
	faulty.GPUs[1].Health = machine.Health{State: machine.Lost, Reason: "GPU is lost"}
	faulty.PCI[3].NUMA = nil
	for _, test := range []struct {
		name    string
		machine *machine.Machine
		config  string
		sick    map[string]string
		want    map[string][]server.Device
		faults  map[string]string
	}{
		{
			name: "whole GPUs", machine: faulty, sick: map[string]string{"GPU-2": "XID 79", "GPU-3": ""},
			want: map[string][]server.Device{"nvidia.com/gpu": {
				{ID: "GPU-0", Healthy: true, NUMA: []int64{0}},
				{ID: "GPU-1", NUMA: []int64{0}},
				{ID: "GPU-2", NUMA: []int64{1}},
				{ID: "GPU-3"},
			}},
			faults: map[string]string{"GPU-1": "lost: GPU is lost", "GPU-2": "XID 79", "GPU-3": "unhealthy"},
		},
		{
			name: "no GPUs", machine: machineWith(0),
			want: map[string][]server.Device{"nvidia.com/gpu": nil},
		},
		{
			name: "shared GPUs are not offered", machine: machineWith(3),
			config: "mode: sgpu\nsgpu: {gpus: [0, GPU-2]}",
			want:   map[string][]server.Device{"nvidia.com/gpu": {{ID: "GPU-1", Healthy: true, NUMA: []int64{0}}}},
		},
		{
			name: "MIG without names", machine: cut(machineWith(2), 1, "1g.10gb", 2),
			want: map[string][]server.Device{"nvidia.com/gpu": {
				{ID: "GPU-0", Healthy: true, NUMA: []int64{0}},
				{ID: "GPU-1", NUMA: []int64{0}},
			}},
			faults: map[string]string{"GPU-1": "MIG is on, and migStrategy is none"},
		},
		{
			name: "MIG under one name", machine: cut(machineWith(3), 2, "1g.10gb", 2), config: "migStrategy: single",
			sick: map[string]string{"GPU-2": "XID 48"},
			want: map[string][]server.Device{"nvidia.com/gpu": {
				{ID: "GPU-0", Healthy: true, NUMA: []int64{0}},
				{ID: "GPU-1", Healthy: true, NUMA: []int64{0}},
				{ID: "MIG-2-0", NUMA: []int64{1}},
				{ID: "MIG-2-1", NUMA: []int64{1}},
			}},
			faults: map[string]string{"MIG-2-0": "XID 48", "MIG-2-1": "XID 48"},
		},
		{
			name:    "MIG by profile",
			machine: cut(cut(cut(machineWith(4), 1, "3g.40gb", 1), 2, "1g.10gb+me", 1), 3, "", 0), config: "migStrategy: mixed",
			want: map[string][]server.Device{
				"nvidia.com/gpu": {
					{ID: "GPU-0", Healthy: true, NUMA: []int64{0}},
					{ID: "GPU-3", NUMA: []int64{1}},
				},
				"nvidia.com/mig-1g.10gb.me": {{ID: "MIG-2-0", Healthy: true, NUMA: []int64{1}}},
				"nvidia.com/mig-3g.40gb":    {{ID: "MIG-1-0", Healthy: true, NUMA: []int64{0}}},
			},
			faults: map[string]string{"GPU-3": "MIG is on, and MIG devices are missing"},
		},
		{
			name: "one UUID twice", machine: func() *machine.Machine { m := machineWith(2); m.GPUs[1].UUID = "GPU-0"; return m }(),
			want: map[string][]server.Device{"nvidia.com/gpu": {{ID: "GPU-0", Healthy: true, NUMA: []int64{0}}}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newGPUNode(t, test.machine)
			n.config = parse(t, test.config)
			if test.sick != nil {
				n.sick = test.sick
			}
			got, faults := map[string][]server.Device{}, map[string]string{}
			for _, name := range resource.GPUNames(n.inventory()) {
				r := resource.NewGPUs(n.options(t, name), n.inventory())
				got[name] = r.Devices()
				maps.Copy(faults, r.Snapshot().Faults())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if test.faults == nil {
				test.faults = map[string]string{}
			}
			if diff := cmp.Diff(test.faults, faults); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// The capacity that users see is what the kubelet receives.
func TestGPUsAgreeWithCapacity(t *testing.T) {
	for _, file := range machines.Names(t) {
		for _, strategy := range []config.MIGStrategy{config.MIGNone, config.MIGSingle, config.MIGMixed} {
			n := newGPUNode(t, machines.Load(t, file))
			n.config.MIGStrategy = strategy
			if len(n.machine.GPUs) > 0 && n.machine.GPUs[0].Vendor != "" {
				n.config.Domains.Vendor = n.machine.GPUs[0].Vendor
				n.config.Resources.GPU = n.config.Domains.GPUResource()
			}
			want, got := map[string][2]int{}, map[string][2]int{}
			for _, r := range capacity.Of(n.machine, &n.config, host.Vendors()) {
				want[r.Name] = [2]int{r.Devices, r.Healthy}
			}
			for _, name := range resource.GPUNames(n.inventory()) {
				healthy := 0
				devices := resource.NewGPUs(n.options(t, name), n.inventory()).Devices()
				for _, d := range devices {
					if d.Healthy {
						healthy++
					}
				}
				got[name] = [2]int{len(devices), healthy}
			}
			for name := range want {
				if _, listed := got[name]; !listed {
					delete(want, name) // HCAs.
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, MIG %s: devices and healthy ones (-capacity +plugin):\n%s", file, strategy, diff)
			}
		}
	}
}

// GPUs and partitions with errors that their counters report are allocated where the
// configuration turns that check off, and those that were found unhealthy otherwise are not.
func TestCountedErrorsByTheConfiguration(t *testing.T) {
	for _, tt := range []struct {
		machine, cause string
		off            []config.HealthCheck
		healthy        int
	}{
		{"amd-mi300x", machine.UncorrectableErrors, nil, 0},
		{"amd-mi300x", machine.UncorrectableErrors, []config.HealthCheck{config.CheckLost}, 0},
		{"amd-mi300x", machine.UncorrectableErrors, []config.HealthCheck{config.CheckECC}, 8},
		{"amd-mi300x", "", []config.HealthCheck{config.CheckAll}, 0},
		{"amd-mi300x-cpx", machine.UncorrectableErrors, nil, 0},
		{"amd-mi300x-cpx", machine.UncorrectableErrors, []config.HealthCheck{config.CheckECC}, 64},
	} {
		m := machines.Load(t, tt.machine)
		for i := range m.GPUs {
			m.GPUs[i].Health = machine.Health{State: machine.Unhealthy, Cause: tt.cause, Reason: "RAS counts 2"}
		}
		n := newGPUNode(t, m)
		n.config.Health.Disable = tt.off
		n.config.Domains.Vendor = "amd.com"
		n.config.Resources.GPU = n.config.Domains.GPUResource()
		healthy := 0
		for _, d := range resource.NewGPUs(n.options(t, n.config.Resources.GPU), n.inventory()).Devices() {
			if d.Healthy {
				healthy++
			}
		}
		counted := capacity.Of(n.machine, &n.config, host.Vendors())[0]
		if healthy != tt.healthy || counted.Healthy != tt.healthy {
			t.Errorf("%s, cause %q, off %v: %d healthy, %d counted, want %d", tt.machine, tt.cause, tt.off, healthy, counted.Healthy, tt.healthy)
		}
		c := n.config
		c.Mode = config.ModeSGPU
		for _, shared := range inventorytest.Configured(n.machine, &c).Shared {
			if counts := strings.Contains(shared.Unhealthy, "RAS"); counts != (tt.healthy == 0) || strings.Contains(shared.Unhealthy, "MIG") {
				t.Errorf("%s, cause %q, off %v: a shared GPU is %q", tt.machine, tt.cause, tt.off, shared.Unhealthy)
			}
		}
	}
}

func TestAllocateGPUs(t *testing.T) {
	void := map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}
	for _, test := range []struct {
		name   string
		change func(*resource.GPUOptions)
		want   *v1beta1.ContainerAllocateResponse
	}{
		{"CDI", nil, &v1beta1.ContainerAllocateResponse{Envs: void, CdiDevices: []*v1beta1.CDIDevice{
			{Name: "heddle.dev/gpu"}, {Name: "driver.heddle.dev/gpu=GPU-0"}, {Name: "driver.heddle.dev/gpu=GPU-2"},
		}}},
		{
			"environment", func(o *resource.GPUOptions) { o.Strategy, o.Driver = resource.Envvar, nil },
			&v1beta1.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"}},
		},
		{"environment with features", func(o *resource.GPUOptions) {
			o.Strategy = resource.Envvar
			o.Features = devgpu.Features{GDRCopy: true, GDS: true}
		}, &v1beta1.ContainerAllocateResponse{Envs: map[string]string{
			"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2", "NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled",
		}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newGPUNode(t, machineWith(4))
			o := n.options(t, "nvidia.com/gpu")
			if test.change != nil {
				test.change(&o)
			}
			r := resource.NewGPUs(o, n.inventory())
			got, err := r.Allocate(t.Context(), []string{"GPU-2", "GPU-0"})
			if err != nil {
				t.Fatal(err)
			}
			if len(got.GetCdiDevices()) > 0 {
				name, ok := cdi.ParseName(got.CdiDevices[0].Name)
				if !ok || !name.MadeFor("nvidia.com/gpu", []string{"GPU-0", "GPU-2"}) {
					t.Errorf("name %s", got.CdiDevices[0].Name)
				}
				got.CdiDevices[0].Name, _, _ = strings.Cut(got.CdiDevices[0].Name, "=")
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			err = r.PreStart(t.Context(), []string{"GPU-2", "GPU-0"})
			if err == nil || !strings.Contains(err.Error(), "no container holds exactly the 2 given devices") {
				t.Errorf("no pod runs: %v", err)
			}
		})
	}
}

// The kubelet may have chosen a GPU just before it left, but not one that is in another
// mode by now.
func TestAllocateTakesWhatHasLeft(t *testing.T) {
	n := newGPUNode(t, machineWith(2))
	r := resource.NewGPUs(n.options(t, "nvidia.com/gpu"), n.inventory())
	n.machine = machineWith(1)
	r.Refresh(n.inventory())
	if len(r.Devices()) != 1 {
		t.Fatalf("devices %v", r.Devices())
	}
	if _, err := r.Allocate(t.Context(), []string{"GPU-1"}); err != nil {
		t.Error(err)
	}
	n.config.Mode = config.ModeSGPU
	r.Refresh(n.inventory())
	if _, err := r.Allocate(t.Context(), []string{"GPU-0"}); err == nil || !strings.Contains(err.Error(), "no longer allocated as native") {
		t.Errorf("a GPU that is shared: %v", err)
	}
}

func TestFreeMIGDevices(t *testing.T) {
	n := newGPUNode(t, cut(machineWith(2), 1, "1g.10gb", 2))
	n.config = parse(t, "migStrategy: single")
	const want = `{"version":1,"held":0,"free":[{"uuid":"GPU-0"},{"uuid":"MIG-1-0","of":"GPU-1"},{"uuid":"MIG-1-1","of":"GPU-1"}]}`
	if got := resource.NewGPUs(n.options(t, "nvidia.com/gpu"), n.inventory()).Snapshot().Free(nil).String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Calls and refreshes at once, for the race detector.
func TestCallsAtOnce(t *testing.T) {
	n := newGPUNode(t, machineWith(8))
	r := resource.NewGPUs(n.options(t, "nvidia.com/gpu"), n.inventory())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				n.mu.Lock()
				n.sick = map[string]string{fmt.Sprintf("GPU-%d", i): "XID 79"}
				n.mu.Unlock()
				r.Refresh(n.inventory())
				ids := []string{}
				for _, d := range r.Devices() {
					ids = append(ids, d.ID)
				}
				chosen, err := r.Prefer(ids, nil, 2)
				if err != nil || !slices.Contains(ids, chosen[0]) {
					t.Errorf("chosen %v of %v: %v", chosen, ids, err)
				}
				if _, err := r.Allocate(t.Context(), chosen); err != nil {
					t.Error(err)
				}
				r.Snapshot().Annotation(nil)
			}
		})
	}
	wg.Wait()
}
