package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
)

func vendor() *Vendor { return &Vendor{Name: "ACME", Probe: "nvml"} }

// fake is a library of functions.
type fake struct {
	open   func() (machine.Driver, int, error)
	gpu    func(index int) (machine.GPU, error)
	closed int
}

func (f *fake) Open() (machine.Driver, int, error) { return f.open() }

func (f *fake) GPU(i int) (machine.GPU, error) { return f.gpu(i) }

func (f *fake) Close() error { f.closed++; return nil }

func opens(count int) func() (machine.Driver, int, error) {
	return func() (machine.Driver, int, error) {
		return machine.Driver{Version: "570.86.15", CUDA: "12.8"}, count, nil
	}
}

func good(i int) (machine.GPU, error) {
	return machine.GPU{
		UUID: fmt.Sprintf("GPU-%d", i), Index: i, PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+i),
		Health: machine.Health{State: machine.Healthy},
	}, nil
}

func mustGood(i int, health machine.Health) machine.GPU {
	g, _ := good(i)
	g.Health = health
	return g
}

// read is a read of a machine without a PCI bus.
func read(ctx context.Context, r *Reader) (m machine.Machine) {
	r.Read(ctx, &m)
	return m
}

func TestMissingDriverIsAStateAndTriedAgain(t *testing.T) {
	library := &fake{gpu: good, open: func() (machine.Driver, int, error) {
		return machine.Driver{}, 0, fmt.Errorf("NVML is %w: the NVIDIA driver is not loaded", ErrAbsent)
	}}
	r := NewReader(Source{vendor(), library}, 0)
	want := machine.Machine{Probes: []machine.Probe{{
		Name: "nvml", State: machine.ProbeAbsent, Reason: "NVML is absent: the NVIDIA driver is not loaded",
	}}}
	if diff := cmp.Diff(want, read(t.Context(), r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	library.open = opens(2)
	if got := read(t.Context(), r); len(got.GPUs) != 2 || got.Probes[0].State != machine.ProbeOK || got.Driver.CUDA != "12.8" {
		t.Errorf("the driver came, and: %+v", got)
	}
}

// One GPU that hangs costs one timeout, keeps its values, holds up no other,
// and is not asked again before it has answered.
func TestHungGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var hang atomic.Bool
		var asked atomic.Int32
		library := &fake{open: opens(3), gpu: func(i int) (machine.GPU, error) {
			if i == 1 {
				asked.Add(1)
				if hang.Load() {
					<-release
				}
			}
			return good(i)
		}}
		r := NewReader(Source{vendor(), library}, 10*time.Second)
		read(t.Context(), r)
		hang.Store(true)
		began := time.Now()
		got := read(t.Context(), r)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("the first read took %s", took)
		}
		healthy := machine.Health{State: machine.Healthy}
		want := machine.Machine{
			Driver: machine.Driver{Version: "570.86.15", CUDA: "12.8"},
			GPUs: []machine.GPU{
				mustGood(0, healthy),
				mustGood(1, machine.Health{State: machine.Unhealthy, Reason: "the driver did not answer in 10s"}),
				mustGood(2, healthy),
			},
			Probes: []machine.Probe{{Name: "nvml", State: machine.ProbeTimeout, Reason: "GPU 1 did not answer in 10s"}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		began = time.Now()
		for range 5 {
			if diff := cmp.Diff(want, read(t.Context(), r)); diff != "" {
				t.Errorf("later (-want +got):\n%s", diff)
			}
		}
		if took := time.Since(began); took != 0 || asked.Load() != 2 {
			t.Errorf("five more reads took %s and asked the GPU %d times, want none and 2", took, asked.Load())
		}
		// A session is not closed under a call that is in it.
		r.bus = []string{"0000:ff:00.0"} // It has left the bus.
		read(t.Context(), r)
		if err := r.Close(t.Context()); err == nil || library.closed != 0 {
			t.Errorf("closed %d times under a hanging call, err %v", library.closed, err)
		}
		hang.Store(false)
		close(release)
		synctest.Wait()
		if got := read(t.Context(), r); got.Probes[0].State != machine.ProbeOK || got.GPUs[1].Health != healthy || library.closed != 1 {
			t.Errorf("the GPU answers again, and: %+v, closed %d times", got, library.closed)
		}
	})
}

func TestHungDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		library := &fake{open: opens(1), gpu: good}
		r := NewReader(Source{vendor(), library}, 10*time.Second)
		read(t.Context(), r)
		var opened atomic.Int32
		library.open = func() (machine.Driver, int, error) { opened.Add(1); <-release; return opens(1)() }
		want := machine.Machine{
			Driver: machine.Driver{Version: "570.86.15", CUDA: "12.8"},
			GPUs:   []machine.GPU{mustGood(0, machine.Health{State: machine.Unhealthy, Reason: "the driver did not answer in 10s"})},
			Probes: []machine.Probe{{Name: "nvml", State: machine.ProbeTimeout, Reason: "the driver did not answer in 10s"}},
		}
		for range 3 {
			if diff := cmp.Diff(want, read(t.Context(), r)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		if n := opened.Load(); n != 1 {
			t.Errorf("%d calls hang, want 1", n)
		}
		close(release)
		synctest.Wait()
		if got := read(t.Context(), r); got.Probes[0].State != machine.ProbeOK {
			t.Errorf("the driver answers again, and: %+v", got)
		}
	})
}

// A caller that gives up gets what is known, at once.
func TestReadEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		r := NewReader(Source{vendor(), &fake{open: opens(1), gpu: func(i int) (machine.GPU, error) { <-release; return good(i) }}}, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := read(ctx, r); got.Probes[0].State != machine.ProbeTimeout || len(got.Skipped) != 1 {
			t.Errorf("%+v", got)
		}
	})
}

func TestBrokenGPU(t *testing.T) {
	broken := errors.New("memory: Unknown Error")
	answers := []error{nil, ErrLost, broken}
	library := &fake{open: opens(3), gpu: good}
	r := NewReader(Source{vendor(), library}, 0)
	read(t.Context(), r)
	library.gpu = func(i int) (machine.GPU, error) {
		if answers[i] != nil {
			return machine.GPU{}, answers[i]
		}
		return good(i)
	}
	want := []machine.GPU{
		mustGood(0, machine.Health{State: machine.Healthy}),
		mustGood(1, machine.Health{State: machine.Lost, Reason: "lost"}),
		mustGood(2, machine.Health{State: machine.Unhealthy, Reason: "memory: Unknown Error"}),
	}
	got := read(t.Context(), r)
	if diff := cmp.Diff(want, got.GPUs); diff != "" || got.Probes[0].State != machine.ProbeOK {
		t.Errorf("probe %+v, (-want +got):\n%s", got.Probes[0], diff)
	}
	// One that has never answered costs no other.
	answers = []error{broken, nil, nil}
	if got := read(t.Context(), NewReader(Source{vendor(), library}, 0)); len(got.GPUs) != 2 || len(got.Skipped) != 1 {
		t.Errorf("%+v, skipped %v", got.GPUs, got.Skipped)
	}
}

// A GPU on the bus that answered, or that the driver never had, hides none after it that was lost.
func TestLostAfterOthers(t *testing.T) {
	library := &fake{open: opens(2), gpu: good}
	r := NewReader(Source{&Vendor{Probe: "nvml", PCI: PCI{Vendor: "0xa", GPUs: []string{"0x03"}}}, library}, 0)
	scan := func(addresses ...string) *machine.Machine {
		m := &machine.Machine{}
		for _, a := range addresses {
			m.PCI = append(m.PCI, machine.PCIFunction{Address: a, Vendor: "0xa", Class: "0x030200"})
		}
		r.Read(t.Context(), m)
		return m
	}
	scan("0000:10:00.0", "0000:11:00.0")
	library.open = opens(1) // The driver lost the second, and a third came that it does not know.
	got := scan("0000:10:00.0", "0000:10:01.0", "0000:11:00.0")
	want := []machine.GPU{
		mustGood(0, machine.Health{State: machine.Healthy}),
		mustGood(1, machine.Health{State: machine.Lost, Reason: "on the PCI bus and unknown to the driver"}),
	}
	if diff := cmp.Diff(want, got.GPUs); diff != "" || len(got.Skipped) != 1 {
		t.Errorf("skipped %v, (-want +got):\n%s", got.Skipped, diff)
	}
}

// A GPU that was lost early has the product of one with its PCI device number, wherever that is among the others.
func TestLostGPUsProduct(t *testing.T) {
	m := &machine.Machine{}
	for i, device := range []string{"0x2330", "0x2322", "0x2330", "0x2322"} {
		m.PCI = append(m.PCI, machine.PCIFunction{Address: fmt.Sprint(i), Vendor: "0x10de", Device: device})
	}
	found := []machine.GPU{{PCI: "0", Product: "H100"}, {PCI: "1"}, {PCI: "2"}, {PCI: "3", Product: "H800"}}
	describe(m, found)
	if found[1].Product != "H800" || found[2].Product != "H100" {
		t.Errorf("%q and %q", found[1].Product, found[2].Product)
	}
}

// A driver that was unloaded fails an old session; the next read opens another.
func TestSessionIsReopenedAfterAFailure(t *testing.T) {
	library := &fake{open: opens(1), gpu: good}
	r := NewReader(Source{vendor(), library}, 0)
	read(t.Context(), r)
	library.open = func() (machine.Driver, int, error) {
		return machine.Driver{}, 0, errors.New("count GPUs: Uninitialized")
	}
	if got := read(t.Context(), r); got.Probes[0].State != machine.ProbeFailed || len(got.GPUs) != 1 || library.closed != 0 {
		t.Errorf("%+v, closed %d times", got, library.closed)
	}
	library.open = opens(2)
	if got := read(t.Context(), r); got.Probes[0].State != machine.ProbeOK || len(got.GPUs) != 2 || library.closed != 1 {
		t.Errorf("%+v, closed %d times", got, library.closed)
	}
}
