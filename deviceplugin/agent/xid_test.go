package agent

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/machines"
)

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
	s.configure("mig: {strategy: single}\nhealth: {downAfter: 0s, upAfter: 0s}")
	s.source = s.options.Source.(source)
	s.run()
	s.list(gpus, gpuCount*perGPU, 0)
	s.list(hcas, ports*perPort, 0)
	return s
}

// fakeDriver answers for the GPUs that are known.
type fakeDriver struct {
	known []string
	// reset is the GPU that the driver wants reset, from 1; 0 is none.
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
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
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
