package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/api/machine"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/machines"
)

// leftovers are what pods that have gone must leave nothing in.
type leftovers struct {
	Goroutines, FDs int
	// Specs, Records and Files count heddle's files in the CDI directory and
	// below the state directory.
	Specs, Records, Files int
	Bindings              int
}

// busy is a rig that pods come to and go from, with a clock that runs fast:
// what is left of a pod is collected a minute after it has gone.
type busy struct {
	*rig
	pods int
}

func newBusy(tb testing.TB) *busy {
	tb.Helper()
	b := &busy{}
	b.rig = newRig(tb, "dgx-h100", func(o *Options) {
		o.API = nil // A preference would wait for each pod to be known.
		// A node's /var/run is a tmpfs too; the checkpoint's disk is not under
		// test here.
		if dir, err := os.MkdirTemp("/dev/shm", "heddle"); err == nil { //nolint:usetesting // TempDir is on a disk.
			tb.Cleanup(func() { _ = os.RemoveAll(dir) })
			o.CDIDir, o.StateDir = filepath.Join(dir, "cdi"), filepath.Join(dir, "state")
		}
	})
	b.run()
	b.list(gpus, 8, 0)
	b.list(hcas, 512, 0)
	return b
}

// batch is how many pods there are at once; the first eight have a GPU.
const batch = 32

// comeAndGo admits pods, starts them all at once and deletes them, a batch at
// a time. Allocate, PreStartContainer and the questions to PodResources, with
// its limit of 100 a second, are those of a kubelet.
func (b *busy) comeAndGo(pods int) {
	b.t.Helper()
	for end := b.pods + pods; b.pods < end; {
		names := make([]string, min(batch, end-b.pods))
		for i := range names {
			names[i] = "p" + strconv.Itoa(b.pods+i)
			limits := map[string]int{hcas: 2}
			if i < 8 {
				limits[gpus] = 1
			}
			b.admit(names[i], limits)
		}
		var group errgroup.Group
		for _, name := range names {
			group.Go(func() error {
				resp, err := b.kubelet.StartContainer(b.t.Context(), "default", name, "main")
				if err == nil && len(resp.CdiDevices) == 0 {
					err = fmt.Errorf("%s has no CDI devices", name)
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			b.t.Fatal(err)
		}
		for _, name := range names {
			b.kubelet.Delete("default", name)
		}
		b.pods += len(names)
		b.collect(time.Minute)
	}
}

// collect lets time pass and looks once for what is left of gone pods.
func (b *busy) collect(after time.Duration) {
	b.t.Helper()
	b.passed.Add(int64(after))
	if err := b.state.Unprepare(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// drain leaves one pod on the node, so that the kubelet has written down that
// the others have gone, and collects what they had. What is under way has ten
// seconds to end until no more goroutines and files are there than most; nil
// does not wait.
func (b *busy) drain(most *leftovers) leftovers {
	b.t.Helper()
	name := "last" + strconv.Itoa(b.pods)
	b.admit(name, map[string]int{gpus: 1, hcas: 2})
	b.start(name)
	for range 3 {
		b.collect(time.Minute)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		now := b.leftovers()
		if most == nil || now.Goroutines <= most.Goroutines && now.FDs <= most.FDs || time.Now().After(end) {
			b.kubelet.Delete("default", name)
			return now
		}
		runtime.Gosched()
	}
}

func (b *busy) leftovers() leftovers {
	b.t.Helper()
	count := func(dir, pattern string) int {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			b.t.Fatal(err)
		}
		return len(names)
	}
	return leftovers{
		Goroutines: runtime.NumGoroutine(), FDs: count("/proc/self/fd", "*"),
		Specs: count(b.options.CDIDir, "heddle-*"), Records: count(b.options.StateDir, "records/*"),
		Files: count(b.options.StateDir, "devices/*"), Bindings: len(b.state.View().Allocations()),
	}
}

// anonymous is this process's RssAnon in MB, with nothing kept that is free.
func anonymous(tb testing.TB) float64 {
	tb.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nRssAnon:")
	kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		tb.Fatal(err)
	}
	return kb / 1024
}

// TestPodsLeaveNothing is the smaller one of BenchmarkPodsLeaveNothing.
func TestPodsLeaveNothing(t *testing.T) {
	b := newBusy(t)
	b.comeAndGo(2 * batch)
	before := b.drain(nil)
	b.comeAndGo(200)
	after := b.drain(&before)
	// Fewer are welcome.
	after.Goroutines, after.FDs = max(before.Goroutines, after.Goroutines), max(before.FDs, after.FDs)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("200 pods left something (-before +after):\n%s", diff)
	}
}

// BenchmarkPodsLeaveNothing has 10,000 pods come and go.
func BenchmarkPodsLeaveNothing(b *testing.B) {
	const pods = 10_000
	n := newBusy(b)
	n.comeAndGo(10 * batch)
	before, memory := n.drain(nil), anonymous(b)
	start := time.Now()
	for b.Loop() {
		n.comeAndGo(pods)
	}
	took := time.Since(start)
	after := n.drain(&before)
	b.ReportMetric(anonymous(b)-memory, "MB-more")
	b.ReportMetric(memory, "MB-before")
	b.ReportMetric(float64(after.Goroutines-before.Goroutines), "goroutines-more")
	b.ReportMetric(float64(after.FDs-before.FDs), "fds-more")
	b.ReportMetric(float64(after.Specs-before.Specs), "specs-more")
	b.ReportMetric(float64(after.Records+after.Files-before.Records-before.Files), "files-more")
	b.ReportMetric(took.Seconds()/float64(b.N), "s")
	calls, rejected := n.kubelet.PodResourcesCalls()
	b.Logf("before %+v, after %+v; %d calls of PodResources, %d of them rejected", before, after, calls, rejected)
}

// The node of newSick: every GPU is cut into MIG devices, so that a GPU has
// several IDs, as every HCA has.
const (
	gpuCount, perGPU = 8, 7
	ports, perPort   = 8, 64
)

// sick is a rig with devices that become unhealthy and recover.
type sick struct {
	*rig
	machine *machine.Machine
	driver  fakeDriver
}

func newSick(tb testing.TB) *sick {
	tb.Helper()
	s := &sick{machine: machines.Load(tb, "dgx-h100")}
	for i := range s.machine.GPUs {
		s.driver.known = append(s.driver.known, s.machine.GPUs[i].UUID)
		cut := &s.machine.GPUs[i].MIG
		cut.Capable, cut.Enabled = true, true
		for j := range perGPU {
			cut.Devices = append(cut.Devices, machine.MIGDevice{UUID: fmt.Sprintf("MIG-%d-%d", i, j), Profile: "1g.10gb"})
		}
	}
	s.rig = newRig(tb, "dgx-h100", func(o *Options) {
		o.Source, o.GPUs = source{newCell(s.machine)}, devgpu.Pollers{devgpu.NewPoller(&s.driver)}
	})
	s.configure("migStrategy: single\nhealth: {downAfter: 0s, upAfter: 0s}")
	s.source = s.options.Source.(source)
	s.run()
	s.list(gpus, gpuCount*perGPU, 0)
	s.list(hcas, ports*perPort, 0)
	return s
}

// fakeDriver answers for the GPUs that are known.
type fakeDriver struct {
	known []string
	// reset is the GPU that the driver wants reset, from 1; 0 means no GPU.
	reset atomic.Int32
	usage devgpu.Usage
}

func (d *fakeDriver) Pulse(uuid string) (devgpu.Action, error) {
	if !slices.Contains(d.known, uuid) {
		return "", devgpu.ErrAbsent
	}
	if at := int(d.reset.Load()); at > 0 && d.known[at-1] == uuid {
		return nvml.ActionGPUReset, nil
	}
	return devgpu.ActionNone, nil
}

func (d *fakeDriver) Usage(uuid string, _ uint64) (devgpu.Usage, error) {
	if !slices.Contains(d.known, uuid) {
		return devgpu.Usage{}, devgpu.ErrAbsent
	}
	return d.usage, nil
}

func (d *fakeDriver) WaitEvent(wait time.Duration) (devgpu.Event, error) {
	<-time.After(wait)
	return devgpu.Event{}, devgpu.ErrNoEvent
}

// xid reports an error of a GPU, waits until the kubelet has the list, and returns
// how long that took and how many lists the kubelet got.
func (s *sick) xid(number int) (took time.Duration, lists int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	before := s.kubelet.State(gpus).Updates
	s.driver.reset.Store(int32(number + 1))
	start := time.Now()
	codes := nvml.Vendor().Codes
	s.monitor.OnEvent(devgpu.Event{GPU: s.machine.GPUs[number].UUID, Code: codes.Code(79)})
	state := s.kubelet.Wait(ctx, gpus, func(s kubelet.State) bool { return len(s.Unhealthy) >= perGPU })
	return time.Since(start), state.Updates - before
}

// recover has the driver find all GPUs healthy.
func (s *sick) recover() {
	s.t.Helper()
	s.driver.reset.Store(0)
	s.monitor.OnEvent(devgpu.Event{})
	s.list(gpus, gpuCount*perGPU, 0)
}

// TestDevicesOfAGPUGoTogether: the kubelet gets all IDs in one list.
func TestDevicesOfAGPUGoTogether(t *testing.T) {
	s := newSick(t)
	for i := range gpuCount {
		if _, lists := s.xid(i); lists != 1 {
			t.Errorf("GPU %d: %d lists for one GPU", i, lists)
		}
		for _, id := range s.kubelet.State(gpus).Unhealthy {
			if id[:len("MIG-0")] != fmt.Sprintf("MIG-%d", i) {
				t.Errorf("GPU %d has an error, and %s is unhealthy", i, id)
			}
		}
		s.recover()
	}
	before := s.kubelet.State(hcas).Updates
	s.alter(func(m *machine.Machine) {
		at := slices.IndexFunc(m.HCAs, func(h machine.HCA) bool { return h.Role == machine.RoleFabric })
		m.HCAs[at].Ports[0].State = machine.PortDown
	})
	if got := s.list(hcas, (ports-1)*perPort, perPort).Updates - before; got != 1 {
		t.Errorf("%d lists for one HCA", got)
	}
}

// BenchmarkXID measures from the driver's event to the list in the kubelet's
// hands, on a node with 56 devices on 8 GPUs and 512 slots on 8 HCAs.
func BenchmarkXID(b *testing.B) {
	s := newSick(b)
	var times []time.Duration
	for i := 0; b.Loop(); i++ {
		took, lists := s.xid(i % gpuCount)
		if lists != 1 {
			b.Errorf("%d lists for one GPU", lists)
		}
		times = append(times, took)
		b.StopTimer()
		s.recover()
		b.StartTimer()
	}
	slices.Sort(times)
	b.ReportMetric(times[len(times)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(times[len(times)*99/100].Seconds()*1000, "p99-ms")
}
