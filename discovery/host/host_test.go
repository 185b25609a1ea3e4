package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// gpus is a library of DGX GPUs; answer, unless nil, decides what each returns.
type gpus struct {
	count  int
	answer func(index int) (machine.GPU, error)
}

func (l *gpus) Open() (machine.Driver, int, error) {
	return machine.Driver{Version: "570.86.15", CUDA: "12.8"}, l.count, nil
}

func (l *gpus) GPU(i int) (machine.GPU, error) {
	if l.answer != nil {
		return l.answer(i)
	}
	return h100(i), nil
}

func (l *gpus) Close() error { return nil }

func h100(i int) machine.GPU {
	return machine.GPU{
		UUID: fmt.Sprintf("GPU-%d", i), Index: i, Minor: new(i), PCI: sysfstest.GPUAddress(i),
		Product: "NVIDIA H100 80GB HBM3", Architecture: "hopper", ComputeCapability: "9.0", MemoryMiB: 81559, ECC: new(true),
		NVLinks: []machine.NVLink{{Peer: machine.PeerNVSwitch, Links: 18, MBps: new(int64(18 * 26562))}},
		Health:  machine.Health{State: machine.Healthy},
	}
}

// from is NVIDIA's GPUs, read by a library.
func from(library gpu.Library) gpu.Sources {
	return gpu.Sources{{Vendor: nvml.Vendor(), Library: library}}
}

// at is a host of a tree.
func at(tree *sysfstest.Tree, library gpu.Library) *Host {
	return New(Options{
		SysfsRoot: tree.Sys(), DevRoot: tree.Dev(), ProcRoot: tree.Proc(), NodeName: "dgx042", GPUs: from(library),
	})
}

func TestScanDGX(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	m := at(tree, &gpus{count: 8}).Scan(t.Context())
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	wantCPU := machine.CPU{
		Arch: "amd64", Vendor: "intel", Family: 6, Model: 143, ModelName: "Intel(R) Xeon(R) Platinum 8480C",
		Codename: "intel-xeon-sapphirerapids", Sockets: 2,
		NUMA: []machine.NUMANode{
			{ID: 0, CPUs: "0-55,112-167", Distances: []int{10, 21}}, {ID: 1, CPUs: "56-111,168-223", Distances: []int{21, 10}},
		},
	}
	if diff := cmp.Diff(wantCPU, m.CPU); diff != "" {
		t.Errorf("CPU (-want +got):\n%s", diff)
	}
	wantPCI := machine.PCIFunction{
		Address: "0000:33:00.0", Class: "0x030200", Vendor: "0x10de", Device: "0x2330", Driver: "nvidia", NUMA: new(0),
		CPUs: "0-55,112-167", Root: "pci0000:30", Upstream: []string{"0000:30:01.0", "0000:31:00.0", "0000:32:00.0"},
		LinkSpeed: "32.0 GT/s PCIe", LinkWidth: 16, MaxLinkSpeed: "32.0 GT/s PCIe", MaxLinkWidth: 16,
	}
	if diff := cmp.Diff(wantPCI, *m.Function("0000:33:00.0")); diff != "" {
		t.Errorf("PCI function (-want +got):\n%s", diff)
	}
	if len(m.PCI) != 17 {
		t.Errorf("%d PCI functions, want 8 GPUs, 8 HCAs and one NIC", len(m.PCI))
	}
	wantHCA := machine.HCA{
		Name: "mlx5_1", PCI: "0000:34:00.0", NodeGUID: "946d:ae03:0012:0100", SysImageGUID: "946d:ae03:0012:0100",
		Vendor: "0x15b3", Device: "0x1021", Driver: "mlx5_core", Type: "MT4129", Board: "MT_0000000838",
		Firmware: "28.39.1002", NodeType: "CA", NodeDesc: "dgx042 mlx5_1", Role: machine.RoleFabric,
		Ports: []machine.Port{{
			Number: 1, GUID: "946d:ae03:0012:0100", LinkLayer: machine.InfiniBand, State: machine.PortActive, PhysState: "LinkUp",
			RateGbps: new(400.0), Rate: "400 Gb/sec (4X NDR)", LID: 0x41, SMLID: 1,
			Netdevs: []machine.Netdev{{Name: "ib1", Type: "infiniband", OperState: "down"}},
		}},
		CharDevices: machine.CharDevices{UVerbs: []string{"uverbs1"}, UMAD: []string{"umad1"}, ISSM: []string{"issm1"}},
	}
	if diff := cmp.Diff(wantHCA, m.HCAs[1]); diff != "" {
		t.Errorf("HCA (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(roles(0, 8, "mlx5_8"), rolesOf(m)); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
	if len(m.GPUs) != 8 || m.GPUs[7].PCI != "0000:f3:00.0" {
		t.Errorf("GPUs: %v", m.GPUs)
	}
	wantProbes := []machine.Probe{
		{Name: "cpu", State: machine.ProbeOK},
		{Name: "nvml", State: machine.ProbeOK},
		{Name: "rdma", State: machine.ProbeOK},
		{Name: "rdma-netlink", State: machine.ProbeAbsent, Reason: tree.Sys() + " is not the running kernel's sysfs"},
		{Name: "sysfs", State: machine.ProbeOK},
	}
	if diff := cmp.Diff(wantProbes, m.Probes); diff != "" {
		t.Errorf("probes (-want +got):\n%s", diff)
	}
	if len(m.Skipped) != 0 || !m.RDMA.RDMACM || m.Product != "DGXH100" || m.Kernel != "6.8.0-60-generic" || m.Node != "dgx042" {
		t.Errorf("skipped %v, rdma %v, product %q, kernel %q, node %q", m.Skipped, m.RDMA, m.Product, m.Kernel, m.Node)
	}
}

// roles is mlx5_first to mlx5_last-1 fabric, and the others storage.
func roles(first, last int, storage ...string) map[string]machine.Role {
	want := map[string]machine.Role{}
	for n := first; n < last; n++ {
		want[fmt.Sprintf("mlx5_%d", n)] = machine.RoleFabric
	}
	for _, name := range storage {
		want[name] = machine.RoleStorage
	}
	return want
}

func rolesOf(m *machine.Machine) map[string]machine.Role {
	got := map[string]machine.Role{}
	for _, h := range m.HCAs {
		got[h.Name] = h.Role
	}
	return got
}

func TestScanNothing(t *testing.T) {
	m := New(Options{
		SysfsRoot: t.TempDir(), DevRoot: t.TempDir(), ProcRoot: t.TempDir(), GPUs: from(&gpus{count: 0}),
	}).Scan(t.Context())
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(m.GPUs)+len(m.HCAs)+len(m.PCI) != 0 || len(m.Probes) != 5 {
		t.Errorf("%+v", m)
	}
}

func TestLostGPUKeepsItsIdentity(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	library := &gpus{count: 8}
	h := at(tree, library)
	h.Scan(t.Context())
	library.answer = func(i int) (machine.GPU, error) {
		if i == 3 {
			return machine.GPU{}, fmt.Errorf("UUID: GPU is %w", gpu.ErrLost)
		}
		return h100(i), nil
	}
	want := h100(3)
	want.Health = machine.Health{State: machine.Lost, Reason: "UUID: GPU is lost"}
	if diff := cmp.Diff(want, h.Scan(t.Context()).GPUs[3]); diff != "" {
		t.Errorf("lost handle (-want +got):\n%s", diff)
	}
	// A new session of NVML counts seven GPUs; the bus still has eight.
	library.count, library.answer = 7, func(i int) (machine.GPU, error) {
		if i >= 3 {
			i++
		}
		return h100(i), nil
	}
	want.Health.Reason = "on the PCI bus and unknown to the driver"
	m := h.Scan(t.Context())
	if diff := cmp.Diff(want, m.GPUs[3]); diff != "" || len(m.GPUs) != 8 {
		t.Errorf("%d GPUs, lost for good (-want +got):\n%s", len(m.GPUs), diff)
	}
	// Removed from the machine, it is gone.
	tree.Remove("sys/bus/pci/devices/" + sysfstest.GPUAddress(3))
	if m := h.Scan(t.Context()); len(m.GPUs) != 7 {
		t.Errorf("%d GPUs after removal", len(m.GPUs))
	}
}

// GPUs that are given to virtual machines, and virtual functions, are none that
// the driver should have.
func TestGPUsOfVirtualMachinesAreExcused(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	devices := "sys/bus/pci/devices/"
	library := &gpus{count: 8}
	h := at(tree, library)
	h.Scan(t.Context())
	for i, driver := range map[int]string{6: "nvgrace_gpu_vfio_pci", 7: "vfio-pci"} {
		tree.Remove(devices + sysfstest.GPUAddress(i) + "/driver")
		tree.Link(devices+sysfstest.GPUAddress(i)+"/driver", "sys/bus/pci/drivers/"+driver)
	}
	tree.Link(devices+sysfstest.GPUAddress(5)+"/physfn", devices+sysfstest.GPUAddress(4))
	library.count = 5
	m := h.Scan(t.Context())
	if len(m.GPUs) != 5 || len(m.Skipped) > 0 {
		t.Errorf("%d GPUs, skipped %v", len(m.GPUs), m.Skipped)
	}
	for i, want := range map[int]string{
		4: "", 5: "a virtual function of 0000:93:00.0, for virtual machines",
		6: "bound to nvgrace_gpu_vfio_pci, for virtual machines", 7: "bound to vfio-pci, for virtual machines",
	} {
		if got := gpu.Excuse(m.Function(sysfstest.GPUAddress(i))); got != want {
			t.Errorf("GPU %d is %q, want %q", i, got, want)
		}
	}
}

func TestGPUThatNeverAnsweredIsSkipped(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	library := &gpus{count: 8, answer: func(i int) (machine.GPU, error) {
		if i == 3 {
			return machine.GPU{}, fmt.Errorf("UUID: GPU is %w", gpu.ErrLost)
		}
		return h100(i), nil
	}}
	m := at(tree, library).Scan(t.Context())
	want := []machine.Skipped{
		{Name: "0000:73:00.0", Reason: "GPU: on the PCI bus and unknown to the driver"},
		{Name: "nvml GPU 3", Reason: "UUID: GPU is lost"},
	}
	if diff := cmp.Diff(want, m.Skipped); diff != "" || len(m.GPUs) != 7 {
		t.Errorf("%d GPUs, skipped (-want +got):\n%s", len(m.GPUs), diff)
	}
}

func TestChangedOnlyWhenTheMachineDiffers(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	h := at(tree, &gpus{count: 8})
	if h.Machine() != nil {
		t.Fatal("a machine before the first scan")
	}
	signaled := func() bool {
		select {
		case <-h.Changed():
			return true
		default:
			return false
		}
	}
	first := h.Scan(t.Context())
	if !signaled() {
		t.Error("no signal for the first scan")
	}
	if again := h.Scan(t.Context()); again != first || signaled() {
		t.Error("an equal scan made a new machine or a signal")
	}
	tree.Write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
	if second := h.Scan(t.Context()); second == first || first.HCAs[0].Ports[0].State != machine.PortActive || !signaled() {
		t.Error("a port went down, and the machine stayed, or the old one was written to")
	}
}

// A scan that is cut short, as at the end of a daemon, changes nothing.
func TestScanCutShort(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	release := make(chan struct{})
	defer close(release)
	library := &gpus{count: 8}
	h := at(tree, library)
	first := h.Scan(t.Context())
	library.answer = func(i int) (machine.GPU, error) { <-release; return h100(i), nil }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.Scan(ctx)
	if h.Machine() != first {
		t.Errorf("GPUs: %+v", h.Machine().GPUs)
	}
}

// Run scans at the start, after events and by the clock, and gathers a burst.
func TestLoop(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	synctest.Test(t, func(t *testing.T) {
		var scans atomic.Int32
		h := at(tree, &gpus{count: 1, answer: func(i int) (machine.GPU, error) { scans.Add(1); return h100(i), nil }})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events := notify.New()
		done := make(chan error)
		go func() { done <- h.loop(ctx, events) }()
		expect := func(when string, want int32) {
			t.Helper()
			synctest.Wait()
			if got := scans.Load(); got != want {
				t.Errorf("%s: %d scans, want %d", when, got, want)
			}
		}
		expect("at the start", 1)
		for range 50 {
			events.Notify()
		}
		expect("while events are gathered", 1)
		<-time.After(debounce)
		expect("after a burst", 2)
		<-time.After(DefaultInterval)
		expect("after the interval", 3)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Run ends with its context, its sockets and goroutines with it.
func TestRunEnds(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	h := at(tree, &gpus{count: 8})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	<-h.Changed()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// BenchmarkScan is one scan of an 8-GPU, 9-HCA machine that has been seen.
func BenchmarkScan(b *testing.B) {
	tree := sysfstest.New(b)
	sysfstest.DGXH100(tree)
	h := at(tree, &gpus{count: 8})
	h.Scan(b.Context())
	b.ReportAllocs()
	before := processorTime(b)
	for b.Loop() {
		if m := h.Scan(b.Context()); len(m.HCAs) != 9 || len(m.GPUs) != 8 {
			b.Fatal(m.Skipped)
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
}

// processorTime is what this process has used, in user and kernel mode: a scan
// is mostly system calls, and other processes must not count.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// fixture is a file of $HEDDLE_FIXTURES, or a skip.
func fixture(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("HEDDLE_FIXTURES")
	if dir == "" {
		t.Skip("HEDDLE_FIXTURES is not set")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skip(err)
	}
	return path
}
