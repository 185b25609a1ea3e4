package health

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
)

// clock counts seconds from an arbitrary time.
func clock(seconds int) time.Time {
	return time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}

// gpus is a machine with GPUs of these states.
func gpus(states ...machine.HealthState) *machine.Machine {
	m := &machine.Machine{Version: machine.Version, Node: "n"}
	for i, state := range states {
		if state == "" {
			continue
		}
		g := machine.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+i)}
		g.Health.State = state
		if state != machine.Healthy {
			g.Health.Reason = "reported by the scan"
		}
		m.GPUs = append(m.GPUs, g)
	}
	return m
}

// counted is a machine with one GPU that its scan found unhealthy, for this cause.
func counted(cause string) *machine.Machine {
	m := gpus(machine.Unhealthy)
	m.GPUs[0].Health.Cause = cause
	return m
}

// step is what happens at one second.
type step struct {
	at int
	do func(t *tracker, now time.Time)
}

func scan(at int, m *machine.Machine) step {
	return step{at, func(t *tracker, _ time.Time) { t.see(m) }}
}

func xidEvent(at int, n uint64) step {
	return step{at, func(t *tracker, now time.Time) { t.event(now, xid(n)) }}
}

func ecc(at int) step {
	return step{at, func(t *tracker, now time.Time) {
		t.event(now, devgpu.Event{GPU: "GPU-0", Code: devgpu.Code{Kind: devgpu.DoubleBitECC, Severity: devgpu.Driver, Text: "double-bit ECC error"}})
	}}
}

func pulse(at int, action devgpu.Action, err error) step {
	return step{at, func(t *tracker, now time.Time) {
		t.gpu("GPU-0").poll(devgpu.Pulse{GPU: "GPU-0", Asked: now, Action: action, Err: err})
	}}
}

func dirty(at int, what string) step {
	return step{at, func(t *tracker, _ time.Time) { t.gpu("GPU-0").dirty = what }}
}

// wait lets time pass.
func wait(at int) step { return step{at, func(*tracker, time.Time) {}} }

func configure(at int, change func(*config.Health)) step {
	return step{at, func(t *tracker, _ time.Time) {
		h := config.Default().Health
		change(&h)
		t.configure(h)
	}}
}

// run gives the state of one device after every step: "0 healthy", or "4 XID:
// reason". A step at which a deadline that judge announced has passed is
// checked, as all others are.
func run(steps []step, state func(*Snapshot) State) []string {
	t := newTracker(config.Default().Health)
	var log []string
	for _, s := range steps {
		s.do(t, clock(s.at))
		snapshot, _ := t.update(clock(s.at))
		is := state(snapshot)
		text := "healthy"
		if !is.Healthy {
			text = string(is.Cause) + ": " + is.Reason
		}
		log = append(log, fmt.Sprintf("%d %s", s.at, text))
	}
	return log
}

func TestGPU(t *testing.T) {
	const (
		well   = "it has recovered, and is healthy once that has lasted 30s"
		asks   = "RecoveryAction: the driver asks for a GPU reset"
		untold = "the driver does not report whether the GPU has recovered, so it is unhealthy until it was reset or this program was restarted"
	)
	healthy, none := scan(0, gpus(machine.Healthy)), pulse(1, devgpu.ActionNone, nil)
	for _, tt := range []struct {
		name  string
		steps []step
		want  []string
	}{
		{"errors of applications and reports of no interest", []step{healthy, xidEvent(1, 31), xidEvent(2, 94), xidEvent(3, 63), xidEvent(4, 43)}, []string{
			"0 healthy", "1 healthy", "2 healthy", "3 healthy", "4 healthy",
		}},
		{"a fatal error, until the driver wants nothing for 30s", []step{
			healthy, none, xidEvent(10, 109), pulse(11, nvml.ActionGPUReset, nil), pulse(60, nvml.ActionGPUReset, nil),
			pulse(70, devgpu.ActionNone, nil), pulse(99, devgpu.ActionNone, nil), wait(100),
		}, []string{
			"0 healthy", "1 healthy", "10 XID: XID 109, context switch timeout",
			"11 XID: XID 109, context switch timeout; the driver asks for a GPU reset",
			"60 XID: XID 109, context switch timeout; the driver asks for a GPU reset",
			"70 XID: XID 109, context switch timeout; " + well, "99 XID: XID 109, context switch timeout; " + well, "100 healthy",
		}},
		{"an answer from before the error does not clear it", []step{healthy, none, xidEvent(10, 79), wait(60)}, []string{
			"0 healthy", "1 healthy", "10 XID: XID 79, the GPU has fallen off the bus", "60 XID: XID 79, the GPU has fallen off the bus",
		}},
		{"an action that comes back starts the time again", []step{
			healthy, none, xidEvent(10, 48), pulse(11, devgpu.ActionNone, nil), pulse(40, nvml.ActionDrainAndReset, nil),
			pulse(42, devgpu.ActionNone, nil), pulse(71, devgpu.ActionNone, nil), wait(72),
		}, []string{
			"0 healthy", "1 healthy", "10 XID: XID 48, double-bit ECC error", "11 XID: XID 48, double-bit ECC error; " + well,
			"40 XID: XID 48, double-bit ECC error; the driver asks for a drain and GPU reset",
			"42 XID: XID 48, double-bit ECC error; " + well, "71 XID: XID 48, double-bit ECC error; " + well, "72 healthy",
		}},
		{"the first error is the reason, a later one holds longer", []step{
			healthy, none, xidEvent(10, 79), pulse(11, devgpu.ActionNone, nil), xidEvent(35, 119), pulse(36, devgpu.ActionNone, nil), wait(65), wait(66),
		}, []string{
			"0 healthy", "1 healthy", "10 XID: XID 79, the GPU has fallen off the bus", "11 XID: XID 79, the GPU has fallen off the bus; " + well,
			"35 XID: XID 79, the GPU has fallen off the bus", "36 XID: XID 79, the GPU has fallen off the bus; " + well,
			"65 XID: XID 79, the GPU has fallen off the bus; " + well, "66 healthy",
		}},
		{"an old driver: out until the GPU went away and came back", []step{
			healthy, pulse(1, devgpu.ActionUnknown, nil), xidEvent(10, 79), pulse(50, devgpu.ActionUnknown, nil), scan(60, gpus(machine.Lost)),
			scan(70, gpus(machine.Healthy)), wait(100),
		}, []string{
			"0 healthy", "1 healthy", "10 XID: XID 79, the GPU has fallen off the bus; " + untold, "50 XID: XID 79, the GPU has fallen off the bus; " + untold,
			"60 XID: XID 79, the GPU has fallen off the bus; the driver has lost it: reported by the scan",
			"70 XID: XID 79, the GPU has fallen off the bus; " + well, "100 healthy",
		}},
		{"a number without meaning: the driver decides", []step{healthy, none, xidEvent(10, 74), ecc(11), xidEvent(12, 999), pulse(13, nvml.ActionNodeReboot, nil)}, []string{
			"0 healthy", "1 healthy", "10 healthy", "11 healthy", "12 healthy", "13 RecoveryAction: the driver asks for a node reboot",
		}},
		{"and is fatal where the driver cannot be asked", []step{healthy, pulse(1, devgpu.ActionUnknown, nil), ecc(10)}, []string{
			"0 healthy", "1 healthy", "10 DoubleBitECC: double-bit ECC error; " + untold,
		}},
		{"the action outlives a restart of this program", []step{healthy, pulse(0, nvml.ActionDrainP2P, nil)}, []string{
			"0 healthy", "0 RecoveryAction: the driver asks for a drain of peer-to-peer traffic",
		}},
		{"lost at once, back after 30s", []step{
			healthy, none, pulse(10, "", fmt.Errorf("temperature: GPU is %w", devgpu.ErrLost)), pulse(20, devgpu.ActionNone, nil), pulse(49, devgpu.ActionNone, nil), wait(50),
		}, []string{
			"0 healthy", "1 healthy", "10 Lost: the driver has lost it: temperature: GPU is lost",
			"20 Lost: the driver has lost it: temperature: GPU is lost; " + well, "49 Lost: the driver has lost it: temperature: GPU is lost; " + well, "50 healthy",
		}},
		{"a hiccup is nothing, silence is", []step{
			healthy, pulse(10, "", devgpu.ErrSilent), pulse(19, "", devgpu.ErrSilent), pulse(20, devgpu.ActionNone, nil),
			pulse(30, "", devgpu.ErrSilent), pulse(39, "", devgpu.ErrSilent), wait(40),
		}, []string{
			"0 healthy", "10 healthy", "19 healthy", "20 healthy", "30 healthy", "39 healthy", "40 NotAnswering: the driver has not answered for 10s",
		}},
		{"failing for long", []step{healthy, pulse(10, "", errors.New("temperature: Unknown Error")), wait(20)}, []string{
			"0 healthy", "10 healthy", "20 NotAnswering: the driver has failed for 10s: temperature: Unknown Error",
		}},
		{"not clean for too long, then clean for 30s", []step{
			healthy, none, dirty(10, "a process"), dirty(20, ""), wait(50),
			configure(51, func(h *config.Health) { h.Disable = []config.HealthCheck{config.CheckDirty} }), dirty(52, "a process"),
		}, []string{
			"0 healthy", "1 healthy", "10 Dirty: a process", "20 Dirty: a process; " + well, "50 healthy", "51 healthy", "52 healthy",
		}},
		{"unhealthy by the scan", []step{scan(0, gpus(machine.Unhealthy)), scan(10, gpus(machine.Healthy)), wait(40)}, []string{
			"0 Failed: reported by the scan", "10 Failed: reported by the scan; " + well, "40 healthy",
		}},
		{"counted errors that cannot be corrected, and the check turned off", []step{
			scan(0, counted(machine.UncorrectableErrors)), configure(1, func(h *config.Health) { h.Disable = []config.HealthCheck{config.CheckECC} }),
			wait(31), scan(32, counted("")),
		}, []string{
			"0 UncorrectableErrors: reported by the scan", "1 UncorrectableErrors: reported by the scan; " + well, "31 healthy",
			"32 Failed: reported by the scan",
		}},
		{"gone and back", []step{healthy, scan(10, gpus("", machine.Healthy)), scan(20, gpus(machine.Healthy)), wait(50)}, []string{
			"0 healthy", "10 Gone: it is not on the node any more", "20 Gone: it is not on the node any more; " + well, "50 healthy",
		}},
		{"checks that are off", []step{
			configure(0, func(h *config.Health) { h.Disable = []config.HealthCheck{config.CheckCodes, config.CheckLost} }), healthy,
			xidEvent(1, 79), ecc(2), pulse(3, "", devgpu.ErrLost), pulse(20, nvml.ActionGPUReset, nil),
		}, []string{
			"0 NotSeen: this GPU was never seen on the node", "0 healthy", "1 healthy", "2 DoubleBitECC: double-bit ECC error; " + untold,
			"3 DoubleBitECC: double-bit ECC error; " + untold, "20 DoubleBitECC: double-bit ECC error; the driver asks for a GPU reset",
		}},
		{"all checks off, but not for what is not there", []step{
			configure(0, func(h *config.Health) { h.Disable = []config.HealthCheck{config.CheckAll} }), healthy,
			xidEvent(1, 79), ecc(2), pulse(3, "", devgpu.ErrLost), pulse(20, nvml.ActionGPUReset, nil), scan(21, gpus()),
		}, []string{
			"0 NotSeen: this GPU was never seen on the node", "0 healthy", "1 healthy", "2 healthy", "3 healthy", "20 healthy", "21 Gone: it is not on the node any more",
		}},
		{"a check is turned off after the error", []step{
			healthy, none, xidEvent(10, 79), configure(11, func(h *config.Health) { h.Disable = []config.HealthCheck{config.CheckCodes} }), wait(41),
		}, []string{
			"0 healthy", "1 healthy", "10 XID: XID 79, the GPU has fallen off the bus", "11 XID: XID 79, the GPU has fallen off the bus; " + well, "41 healthy",
		}},
		{"configured XIDs", []step{
			configure(0, func(h *config.Health) {
				h.FatalXIDs, h.IgnoreXIDs = []int{94}, []int{79, 119}
			}), healthy, xidEvent(1, 79), xidEvent(2, 119), none, xidEvent(3, 94),
		}, []string{
			"0 NotSeen: this GPU was never seen on the node", "0 healthy", "1 healthy", "2 healthy", "1 healthy", "3 XID: XID 94, contained memory error",
		}},
		{"a poll that cannot read the action does not clear it", []step{
			healthy, pulse(1, nvml.ActionGPUReset, nil), pulse(3, devgpu.ActionUnknown, nil), pulse(42, devgpu.ActionUnknown, errors.New("Unknown Error")),
			pulse(44, devgpu.ActionNone, nil), pulse(46, devgpu.ActionUnknown, nil), wait(74),
		}, []string{"0 healthy", "1 " + asks, "3 " + asks, "42 " + asks, "44 " + asks + "; " + well, "46 " + asks + "; " + well, "74 healthy"}},
		{"an event before the first scan is not lost", []step{xidEvent(0, 79), scan(1, gpus(machine.Healthy))}, []string{
			"0 NotSeen: this GPU was never seen on the node", "1 XID: XID 79, the GPU has fallen off the bus; " + untold,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := run(tt.steps, func(s *Snapshot) State { return s.GPU("GPU-0") })
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Since is the time of the last change between healthy and not.
func TestSince(t *testing.T) {
	tr := newTracker(config.Default().Health)
	var got []int
	for _, s := range []step{
		scan(0, gpus(machine.Healthy)), wait(5), xidEvent(10, 79), pulse(20, nvml.ActionGPUReset, nil), pulse(30, devgpu.ActionNone, nil), wait(60), wait(70),
	} {
		s.do(tr, clock(s.at))
		snapshot, _ := tr.update(clock(s.at))
		got = append(got, int(snapshot.GPU("GPU-0").Since.Sub(clock(0)).Seconds()))
	}
	if diff := cmp.Diff([]int{0, 0, 10, 10, 10, 60, 60}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// judge returns when it must be called again, and calling it then is enough.
func TestDeadlines(t *testing.T) {
	for _, tt := range []struct {
		name  string
		steps []step
		want  time.Time
	}{
		{"nothing to wait for", []step{scan(0, gpus(machine.Healthy))}, time.Time{}},
		{"silence", []step{scan(0, gpus(machine.Healthy)), pulse(3, "", devgpu.ErrSilent), wait(5)}, clock(13)},
		{"silence that is not checked", []step{
			configure(0, func(h *config.Health) { h.Disable = []config.HealthCheck{config.CheckLost} }),
			scan(0, gpus(machine.Healthy)), pulse(3, "", devgpu.ErrSilent), wait(50),
		}, time.Time{}},
		{"recovery", []step{scan(0, gpus(machine.Lost)), scan(10, gpus(machine.Healthy)), wait(15)}, clock(40)},
		{"the driver wants something", []step{scan(0, gpus(machine.Healthy)), pulse(1, nvml.ActionGPUReset, nil)}, time.Time{}},
		{"a link is down", []step{scan(0, ports(active)), scan(5, ports(down))}, clock(15)},
		{"a link is up", []step{scan(0, ports(down)), scan(5, ports(active)), wait(20)}, clock(35)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(config.Default().Health)
			var next time.Time
			for _, s := range tt.steps {
				s.do(tr, clock(s.at))
				_, next = tr.update(clock(s.at))
			}
			if !next.Equal(tt.want) {
				t.Errorf("next %s, want %s", next, tt.want)
			}
		})
	}
}

// TestGPUOfAVirtualMachineIsForgotten: it was given away on purpose, which is no
// fault of the node. One that only left the bus or its driver is gone.
func TestGPUOfAVirtualMachineIsForgotten(t *testing.T) {
	for driver, known := range map[string]bool{"nvidia": true, "": true, "vfio-pci": false, "nvgrace_gpu_vfio_pci": false} {
		tr := newTracker(config.Default().Health)
		tr.see(gpus(machine.Healthy, machine.Healthy))
		m := gpus(machine.Healthy)
		m.PCI = []machine.PCIFunction{{Address: "0000:11:00.0", Driver: driver}}
		tr.see(m)
		s, _ := tr.update(clock(1))
		if state, there := s.GPUs["GPU-1"]; there != known || there && state.Cause != Gone {
			t.Errorf("bound to %q: %t, %+v", driver, there, state)
		}
	}
}
