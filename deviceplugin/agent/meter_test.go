package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/state"
)

// procfs makes one: processes that are not in it have ended. A container without
// a pod is a process of the host.
func procfs(t *testing.T, hostPIDs bool, all map[int]cgroup.Container) cgroup.Proc {
	t.Helper()
	root := t.TempDir()
	for pid, in := range all {
		path := "/system.slice/sshd.service"
		if in.PodUID != "" {
			path = "/kubepods/pod" + in.PodUID + "/" + in.ID
		}
		dir := filepath.Join(root, strconv.Itoa(pid))
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::"+path+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if hostPIDs {
		ns := filepath.Join(root, "self", "ns")
		if err := errors.Join(os.MkdirAll(ns, 0o700), os.Symlink("pid:[4026531836]", filepath.Join(ns, "pid"))); err != nil {
			t.Fatal(err)
		}
	}
	return cgroup.Proc{Root: root}
}

func podOf(name string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "default", name, types.UID(uidOf(name))
	return p
}

// process is where one of a pod's container runs.
func process(pod, container string) cgroup.Container {
	id := sha256.Sum256([]byte(container))
	return cgroup.Container{PodUID: uidOf(pod), ID: hex.EncodeToString(id[:])}
}

func consumerOf(pod, container string, enforced config.Enforcer, gpus ...string) report.Binding {
	b := report.Binding{Namespace: "default", Pod: pod, UID: uidOf(pod), Container: container, Enforced: enforce.Enforced{Memory: enforced}}
	for _, uuid := range gpus {
		b.Shares = append(b.Shares, allocation.Share{UUID: uuid, VCore: 30, MemoryMiB: 4096})
	}
	return b
}

func TestAttribute(t *testing.T) {
	pid := process
	procs := procfs(t, true, map[int]cgroup.Container{
		1: pid("a", "id-a"), 2: pid("a", "id-a"), 3: pid("b", "id-b1"), 4: pid("b", "id-b2"), 5: pid("b", "id-new"),
		6: pid("other", "id-o"), 7: {}, 8: pid("a", "id-side"),
	})
	named := map[cgroup.Container]string{
		pid("b", "id-b1"): "one", pid("b", "id-b2"): "two", pid("a", "id-side"): "sidecar",
	}
	a, one, two := consumerOf("a", "main", config.EnforceDMem, "x"), consumerOf("b", "one", config.EnforceNone, "x"), consumerOf("b", "two", config.EnforceNone, "x", "y")
	anonymous := consumerOf("c", "main", config.EnforceNone, "x")
	anonymous.UID = ""
	type part struct{ pod, container, gpu string }
	type use struct{ bytes, sm int64 }
	of := func(b report.Binding, gpu string) part { return part{b.Pod, b.Container, gpu} }
	on := &machine.Machine{GPUs: []machine.GPU{{UUID: "x"}, {UUID: "y"}}}
	x := func(processes ...devgpu.Process) []devgpu.Usage {
		return []devgpu.Usage{{GPU: "x", Processes: processes}}
	}
	busy := func(samples ...devgpu.Sample) []devgpu.Usage { return []devgpu.Usage{{GPU: "x", Samples: samples}} }
	for _, tt := range []struct {
		name     string
		bindings []report.Binding
		usage    []devgpu.Usage
		want     map[part]use
	}{
		{"no process runs", []report.Binding{a}, x(), map[part]use{of(a, "x"): {0, 0}}},
		{
			"two processes of a container, one of a pod without shares",
			[]report.Binding{a},
			x(devgpu.Process{PID: 1, Bytes: 10}, devgpu.Process{PID: 2, Bytes: 20}, devgpu.Process{PID: 6, Bytes: 40}),
			map[part]use{of(a, "x"): {30, 0}},
		},
		{
			"two containers of a pod on a GPU, by the IDs of its status",
			[]report.Binding{a, one, two},
			x(devgpu.Process{PID: 1, Bytes: 1}, devgpu.Process{PID: 3, Bytes: 10}, devgpu.Process{PID: 4, Bytes: 20}),
			map[part]use{of(a, "x"): {1, 0}, of(one, "x"): {10, 0}, of(two, "x"): {20, 0}},
		},
		{
			"an ID that the status does not have yet: either may have it",
			[]report.Binding{a, one, two},
			x(devgpu.Process{PID: 1, Bytes: 1}, devgpu.Process{PID: 3, Bytes: 10}, devgpu.Process{PID: 5, Bytes: 20}),
			map[part]use{of(a, "x"): {1, 0}, of(one, "x"): {unknown, 0}, of(two, "x"): {unknown, 0}},
		},
		{
			"the same where only one has the GPU",
			[]report.Binding{two},
			x(devgpu.Process{PID: 5, Bytes: 20}),
			map[part]use{of(two, "x"): {20, 0}},
		},
		{
			"a container of the pod that has no share",
			[]report.Binding{a},
			x(devgpu.Process{PID: 8, Bytes: 20}),
			map[part]use{of(a, "x"): {0, 0}},
		},
		{
			"a process that may belong to any pod",
			[]report.Binding{a, one},
			x(devgpu.Process{PID: 1, Bytes: 1}, devgpu.Process{PID: 7, Bytes: 2}),
			map[part]use{of(a, "x"): {unknown, 0}, of(one, "x"): {unknown, 0}},
		},
		{
			"no PID", []report.Binding{a}, x(devgpu.Process{PID: 0, Bytes: 1}), map[part]use{of(a, "x"): {unknown, 0}},
		},
		{
			"memory that has ended, and memory that the driver does not report",
			[]report.Binding{a, one},
			x(devgpu.Process{PID: 1, Bytes: 1}, devgpu.Process{PID: 99, Bytes: 7}, devgpu.Process{PID: 3, Bytes: -1}),
			map[part]use{of(a, "x"): {1, 0}, of(one, "x"): {unknown, 0}},
		},
		{
			"the SMs",
			[]report.Binding{a, one},
			busy(devgpu.Sample{PID: 1, SM: 20}, devgpu.Sample{PID: 2, SM: 5}, devgpu.Sample{PID: 3, SM: -1}, devgpu.Sample{PID: 99}),
			map[part]use{of(a, "x"): {0, 25}, of(one, "x"): {0, unknown}},
		},
		{
			"kernels of a process that has ended",
			[]report.Binding{a},
			busy(devgpu.Sample{PID: 1, SM: 20}, devgpu.Sample{PID: 99, SM: 1}),
			map[part]use{of(a, "x"): {0, unknown}},
		},
		{
			"no samples to be had",
			[]report.Binding{a},
			[]devgpu.Usage{{GPU: "x", Processes: []devgpu.Process{{PID: 1, Bytes: 1}}, SamplesErr: errors.New("Not Supported")}},
			map[part]use{of(a, "x"): {1, unknown}},
		},
		{
			"a GPU that does not answer, and one that does",
			[]report.Binding{two},
			[]devgpu.Usage{{GPU: "x", Err: devgpu.ErrSilent}, {GPU: "y", Processes: []devgpu.Process{{PID: 4, Bytes: 8}}}},
			map[part]use{of(two, "y"): {8, 0}},
		},
		{
			"MPS counts for its server, a pod without UID does not count",
			[]report.Binding{consumerOf("a", "main", config.EnforceMPS, "x"), anonymous},
			x(devgpu.Process{PID: 1, Bytes: 1}),
			map[part]use{},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all, got := uses(on, tt.bindings, nil), map[part]use{}
			attribute(all, tt.usage, procs, named)
			for _, u := range all {
				if u.Used != unknown || u.SM != unknown {
					got[part{u.Pod, u.Container, u.GPU}] = use{u.Used, u.SM}
				}
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(part{}, use{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestContainerNames(t *testing.T) {
	p := podOf("a")
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://1f"}, {Name: "waits"}}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "sidecar", ContainerID: "cri-o://2e"}}
	want := map[cgroup.Container]string{{PodUID: uidOf("a"), ID: "1f"}: "main", {PodUID: uidOf("a"), ID: "2e"}: "sidecar"}
	// The statuses as the watch keeps them.
	if diff := cmp.Diff(want, containerNames([]*corev1.Pod{p})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// usageDriver hands out the same usage again and again.
type usageDriver struct {
	uuid  string
	usage devgpu.Usage
}

func (d usageDriver) Pulse(string) (devgpu.Action, error) { return devgpu.ActionNone, nil }

func (d usageDriver) Usage(uuid string, _ uint64) (devgpu.Usage, error) {
	if uuid != d.uuid {
		return devgpu.Usage{}, devgpu.ErrAbsent
	}
	return d.usage, nil
}

func (usageDriver) WaitEvent(time.Duration) (devgpu.Event, error) {
	return devgpu.Event{}, devgpu.ErrNoEvent
}

// series are all series, with GPU-x for the UUID of a GPU.
func series(t *testing.T, uuid string, all ...prometheus.Collector) []string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(all...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+strings.ReplaceAll(l.GetValue(), uuid, "GPU-x"))
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			found = append(found, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), value))
		}
	}
	slices.Sort(found)
	return found
}

func TestUsageMetrics(t *testing.T) {
	m := machines.Load(t, "dgx-h100")
	uuid := m.GPUs[0].UUID
	c := config.Default()
	round := &publish.Round{Inventory: inventorytest.Configured(m, &c), Sharing: true}
	entry := state.Entry(cdi.SGPU, "nvidia.com/sgpu", uuid+"::0", uuid)
	entry.Owner.UID, entry.Owner.Name = uidOf("runs"), "main"
	entry.Shares[0].VCore, entry.Shares[0].MemoryMiB, entry.Policy, entry.By = 60, 4096, "fixed-share", "node"
	const labels = "{container=main,gpu=GPU-x,namespace=default,pod=runs} "
	has := []string{
		"heddle_share_info{by=node,container=main,enforcer_compute=,enforcer_memory=,gpu=GPU-x,namespace=default,pod=runs,policy=fixed-share} 1",
		"heddle_share_memory_bytes" + labels + "4.294967296e+09",
		"heddle_share_vcore_percent" + labels + "60",
	}
	used := []string{
		"heddle_share_memory_used_bytes" + labels + "1.073741824e+09", "heddle_share_sm_used_percent" + labels + "55",
	}
	for _, tt := range []struct {
		name     string
		replayed bool
		hostPIDs bool
		why      string
		used     []string
	}{
		{"in the host's PID namespace", false, true, "", used},
		{"in its own", false, false, "gpuDevice.usageMetrics", nil},
		{"a replayed machine", true, true, "replayed", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{
				Processes: procfs(t, tt.hostPIDs, map[int]cgroup.Container{41: process("runs", "main")}),
			}
			devices := state.New(t, t.TempDir(), round.Inventory, entry)
			if !tt.replayed {
				o.GPUs = devgpu.Pollers{devgpu.NewPoller(usageDriver{uuid, devgpu.Usage{
					Processes: []devgpu.Process{{PID: 41, Bytes: 1 << 30}}, Samples: []devgpu.Sample{{PID: 41, At: 1, SM: 55}},
				}})}
			}
			last := &atomic.Pointer[publish.Round]{}
			last.Store(round)
			meter := newMeter(&o, devices, last)
			if got := meter.unmeasured(); (got == "") != (tt.why == "") || !strings.Contains(got, tt.why) {
				t.Errorf("unmeasured: %q", got)
			}
			if diff := cmp.Diff(has, series(t, uuid, meter)); diff != "" {
				t.Errorf("before the GPUs were asked (-want +got):\n%s", diff)
			}
			if tt.why == "" {
				meter.measure(t.Context())
			}
			want := slices.Sorted(slices.Values(slices.Concat(has, tt.used)))
			if diff := cmp.Diff(want, series(t, uuid, meter)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			meter.at = meter.at.Add(-validFor)
			if diff := cmp.Diff(has, series(t, uuid, meter)); diff != "" {
				t.Errorf("no GPU answered for a long time (-want +got):\n%s", diff)
			}
		})
	}
}
