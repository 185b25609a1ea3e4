package health

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

func TestShortages(t *testing.T) {
	bad := func(cause Cause, reason string) State { return State{Cause: cause, Reason: reason} }
	devices := map[string]State{
		"GPU 0": {Healthy: true},
		"GPU 1": bad(Lost, "the driver has lost it"),
		"GPU 2": bad("XID", "XID 79"),
		"GPU 3": bad("XID", "XID 119"),
	}
	want := []Shortage{
		{"nvidia.com/gpu", Lost, 1, "GPU 1: the driver has lost it"},
		{"nvidia.com/gpu", "XID", 2, "GPU 2: XID 79; GPU 3: XID 119"},
	}
	if diff := cmp.Diff(want, Shortages("nvidia.com/gpu", devices)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	many := map[string]State{}
	for i := range 10 {
		many[fmt.Sprintf("mlx5_%d", i)] = bad(PortDown, "port 1 is DOWN (Polling)")
	}
	want = []Shortage{{"rdma/a", PortDown, 10, "mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7 and 2 more: port 1 is DOWN (Polling)"}}
	if diff := cmp.Diff(want, Shortages("rdma/a", many)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Shortages("rdma/a", map[string]State{"mlx5_0": {Healthy: true}}); got != nil {
		t.Errorf("healthy devices are short: %v", got)
	}
}

func TestConditionOf(t *testing.T) {
	gpu := Shortage{"nvidia.com/gpu", "XID", 1, "GPU 2: XID 79"}
	hca := Shortage{"rdma/a", PortDown, 2, "mlx5_0, mlx5_1: port 1 is DOWN"}
	none := Shortage{"rdma/b", "NoMatch", 0, "no HCA is selected: linkTypes has ether, the HCAs have infiniband"}
	for _, tt := range []struct {
		name      string
		shortages []Shortage
		want      Condition
	}{
		{"nothing is short", nil, Condition{Type: "HeddleReady", True: true, Reason: "AllDevicesReady", Message: "every device of every resource is healthy"}},
		{"one cause", []Shortage{gpu}, Condition{Type: "HeddleReady", Reason: "XID", Message: "nvidia.com/gpu: 1 unavailable: GPU 2: XID 79"}},
		{"several, in any order", []Shortage{none, hca, gpu}, Condition{
			Type: "HeddleReady", Reason: "SeveralCauses", Message: "nvidia.com/gpu: 1 unavailable: GPU 2: XID 79. rdma/a: 2 unavailable: mlx5_0, mlx5_1: port 1 is DOWN. " +
				"rdma/b: no HCA is selected: linkTypes has ether, the HCAs have infiniband",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, ConditionOf(tt.shortages)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for i := range 4 {
		long := ConditionOf([]Shortage{{"r", "XID", 0, strings.Repeat("x", i) + strings.Repeat("ü", 2000)}})
		if len(long.Message) > MaxMessage || len(long.Message) < MaxMessage-8 || !utf8.ValidString(long.Message) {
			t.Errorf("a long message has %d bytes, valid UTF-8: %v", len(long.Message), utf8.ValidString(long.Message))
		}
	}
}

func TestRemedyOf(t *testing.T) {
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	well := func(ago time.Duration) State { return State{Healthy: true, Since: at.Add(-ago)} }
	ill := func(ago time.Duration) State {
		return State{Cause: Lost, Reason: "it is lost", Since: at.Add(-ago)}
	}
	const long, short = 3 * time.Minute, time.Minute
	for _, tt := range []struct {
		name     string
		policy   config.RemediationPolicy
		a, b     State
		cordoned bool
		want     Remedy
	}{
		{"all healthy", config.RemediationDrain, well(long), well(long), false, Remedy{}},
		{"just ill", config.RemediationDrain, ill(short), well(long), false, Remedy{Message: "GPU a: it is lost"}},
		{"ill", config.RemediationDrain, ill(long), well(long), false, Remedy{true, []string{"a"}, "GPU a: it is lost"}},
		{"exactly long enough", config.RemediationCordon, well(long), ill(2 * time.Minute), false, Remedy{true, []string{"b"}, "GPU b: it is lost"}},
		{
			"a second one is drained after its own time", config.RemediationDrain, ill(long), ill(short), true,
			Remedy{true, []string{"a"}, "GPU a, GPU b: it is lost"},
		},
		{"both", config.RemediationDrain, ill(long), ill(long), true, Remedy{true, []string{"a", "b"}, "GPU a, GPU b: it is lost"}},
		{"just healthy again", config.RemediationCordon, well(short), well(long), true, Remedy{Cordon: true}},
		{"healthy again", config.RemediationCordon, well(long), well(long), true, Remedy{}},
		{"a restart with an ill GPU", config.RemediationDrain, ill(0), well(0), true, Remedy{Cordon: true, Message: "GPU a: it is lost"}},
		{"a restart with healthy ones", config.RemediationDrain, well(0), well(0), true, Remedy{Cordon: true}},
		{"turned off", config.RemediationNone, ill(long), well(long), true, Remedy{Message: "GPU a: it is lost"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.a.Name, tt.b.Name = "GPU a", "GPU b"
			s := &Snapshot{GPUs: map[string]State{"a": tt.a, "b": tt.b}}
			got := RemedyOf(&config.Health{Remediation: tt.policy, RemediateAfter: 2 * time.Minute}, s, tt.cordoned, at)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// active and down are ports of a fabric HCA.
func active(*machine.Port) {}

func down(p *machine.Port) { p.State, p.PhysState, p.RateGbps = machine.PortDown, "Polling", new(2.5) }

func slow(p *machine.Port) { p.RateGbps, p.Rate = new(200.0), "200 Gb/sec" }

func infiniBand(state string) func(*machine.Port) {
	return func(p *machine.Port) { p.State, p.SMLID = state, 0 }
}

// ports is a machine with one HCA for each port; nil leaves an HCA out.
func ports(changes ...func(*machine.Port)) *machine.Machine {
	m := &machine.Machine{Version: machine.Version, Node: "n"}
	for i, change := range changes {
		if change == nil {
			continue
		}
		p := machine.Port{
			Number: 1, LinkLayer: machine.InfiniBand, State: machine.PortActive, PhysState: "LinkUp", SMLID: 1,
			RateGbps: new(400.0), Rate: "400 Gb/sec (4X NDR)",
		}
		change(&p)
		m.HCAs = append(m.HCAs, machine.HCA{
			Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:%02x:00.0", 0x40+i), Vendor: "0x15b3", Device: "0x1021",
			Role: machine.RoleFabric, Ports: []machine.Port{p},
		})
	}
	return m
}

// twoPorts is one HCA with two ports.
func twoPorts(first, second func(*machine.Port)) *machine.Machine {
	m := ports(first, second)
	m.HCAs[0].Ports = append(m.HCAs[0].Ports, m.HCAs[1].Ports[0])
	m.HCAs[0].Ports[1].Number = 2
	m.HCAs = m.HCAs[:1]
	return m
}

func edit(m *machine.Machine, change func(*machine.Machine)) *machine.Machine {
	change(m)
	return m
}

func TestHCA(t *testing.T) {
	// The first HCA is a virtual function of the second.
	virtual := func(vf, pf func(*machine.Port)) *machine.Machine {
		return edit(ports(vf, pf), func(m *machine.Machine) { m.HCAs[0].PhysFn = m.HCAs[1].PCI })
	}
	const polling = "PortDown: port 1 is DOWN (Polling)"
	for _, tt := range []struct {
		name  string
		steps []step
		want  []string
	}{
		{"down after 10s, up after 30s", []step{
			scan(0, ports(active)), scan(5, ports(down)), wait(14), wait(15), scan(20, ports(active)), wait(49), wait(50),
		}, []string{"0 healthy", "5 healthy", "14 healthy", "15 " + polling, "20 " + polling, "49 " + polling, "50 healthy"}},
		{"down at first sight", []step{scan(0, ports(down))}, []string{"0 " + polling}},
		{"a short interruption", []step{scan(0, ports(active)), scan(5, ports(down)), scan(9, ports(active)), wait(19), scan(20, ports(down)), wait(29)}, []string{
			"0 healthy", "5 healthy", "9 healthy", "19 healthy", "20 healthy", "29 healthy",
		}},
		{"a link that flaps", []step{
			scan(0, ports(active)), scan(1, ports(down)), scan(4, ports(active)), scan(7, ports(down)), scan(10, ports(active)), scan(13, ports(down)),
			scan(16, ports(active)), scan(30, ports(down)), scan(40, ports(active)), wait(69), wait(70),
		}, []string{
			"0 healthy", "1 healthy", "4 healthy", "7 healthy", "10 healthy", "13 " + polling,
			"16 " + polling, "30 " + polling, "40 " + polling, "69 " + polling, "70 healthy",
		}},
		{"down at once", []step{
			configure(0, func(h *config.Health) { h.DownAfter = 0 }), scan(0, ports(active)), scan(5, ports(down)),
		}, []string{"0 NotSeen: this HCA was never seen on the node", "0 healthy", "5 " + polling}},
		{"no subnet manager", []step{scan(0, ports(infiniBand(machine.PortActive)))}, []string{
			"0 NoSubnetManager: port 1 is ACTIVE, but no subnet manager is known (SM LID 0)",
		}},
		{"waiting for the subnet manager", []step{scan(0, ports(infiniBand(machine.PortInit)))}, []string{
			"0 NoSubnetManager: port 1 is INIT: no subnet manager has brought it up",
		}},
		{"RoCE has none", []step{scan(0, ports(func(p *machine.Port) { p.SMLID, p.LinkLayer = 0, machine.Ethernet }))}, []string{"0 healthy"}},
		{"slower than most of its like", []step{scan(0, ports(slow, active, active))}, []string{
			"0 RateDegraded: port 1 runs at 200 Gb/sec, where ports like it have 400 Gb/s",
		}},
		{"nor are two of four", []step{scan(0, ports(slow, slow, active, active))}, []string{"0 healthy"}},
		{"half of them are no measure", []step{scan(0, ports(slow, active))}, []string{"0 healthy"}},
		{"another kind does not count", []step{scan(0, edit(ports(slow, active, active), func(m *machine.Machine) { m.HCAs[0].Device = "0x101b" }))}, []string{"0 healthy"}},
		{"slower than it was", []step{scan(0, ports(active)), scan(1, ports(slow)), wait(11), scan(20, ports(active)), wait(50)}, []string{
			"0 healthy", "1 healthy", "11 RateDegraded: port 1 runs at 200 Gb/sec, where it had 400 Gb/s",
			"20 RateDegraded: port 1 runs at 200 Gb/sec, where it had 400 Gb/s", "50 healthy",
		}},
		{"the whole fabric was set to another rate", []step{scan(0, ports(active, active)), scan(10, ports(slow, slow)), wait(30)}, []string{
			"0 healthy", "10 healthy", "30 healthy",
		}},
		{"rates are not checked", []step{
			configure(0, func(h *config.Health) { h.Disable = []config.HealthCheck{config.CheckRate} }), scan(0, ports(slow, active, active)),
		}, []string{"0 NotSeen: this HCA was never seen on the node", "0 healthy"}},
		{"HCAs are not checked", []step{
			scan(0, ports(down)), configure(1, func(h *config.Health) { h.Disable = []config.HealthCheck{config.CheckHCAs} }), wait(31),
		}, []string{"0 " + polling, "1 " + polling, "31 healthy"}},
		{"a second port without a cable", []step{scan(0, twoPorts(active, down)), scan(10, twoPorts(down, down)), wait(20)}, []string{
			"0 healthy", "10 healthy", "20 PortDown: port 1 is DOWN (Polling); port 2 is DOWN (Polling)",
		}},
		{"the least bad port gives the cause", []step{scan(0, twoPorts(down, infiniBand(machine.PortInit)))}, []string{
			"0 NoSubnetManager: port 1 is DOWN (Polling); port 2 is INIT: no subnet manager has brought it up",
		}},
		{"no ports", []step{scan(0, edit(ports(active), func(m *machine.Machine) { m.HCAs[0].Ports = nil }))}, []string{
			"0 PortDown: no port could be read",
		}},
		{"the driver is loaded again", []step{scan(0, ports(active)), scan(10, ports()), scan(15, ports(active)), wait(60)}, []string{
			"0 healthy", "10 healthy", "15 healthy", "60 healthy",
		}},
		{"the driver is gone", []step{scan(0, ports(active)), scan(10, ports()), wait(20)}, []string{
			"0 healthy", "10 healthy", "20 Gone: its RDMA device is not on the node any more",
		}},
		{"a virtual function was removed", []step{
			scan(0, edit(ports(active), func(m *machine.Machine) { m.HCAs[0].PhysFn = "0000:40:00.1" })), scan(10, ports()),
		}, []string{"0 healthy", "10 NotSeen: this HCA was never seen on the node"}},
		{"an idle virtual function", []step{scan(0, virtual(down, active))}, []string{
			"0 Idle: port 1 is DOWN (Polling): no container has set up this virtual function of mlx5_1",
		}},
		{"a virtual function without a GUID", []step{scan(0, virtual(infiniBand(machine.PortInit), active))}, []string{
			"0 PortDown: port 1 is INIT, and its physical function mlx5_1 is ACTIVE: the virtual function has no GUID, or its link state is not set",
		}},
		{"a virtual function without a fabric", []step{scan(0, virtual(infiniBand(machine.PortInit), down))}, []string{
			"0 NoSubnetManager: port 1 is INIT: no subnet manager has brought it up",
		}},
		{"given to a virtual machine", []step{scan(0, ports(active)), scan(10, edit(ports(), func(m *machine.Machine) {
			m.PCI = []machine.PCIFunction{{Address: "0000:40:00.0", Driver: "mlx5_vfio_pci"}}
		}))}, []string{"0 healthy", "10 NotSeen: this HCA was never seen on the node"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := run(tt.steps, func(s *Snapshot) State { return s.HCA("0000:40:00.0") })
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A link that flaps faster than any scan sees is still decided by what is seen.
func TestFlapNeverBlocksForEver(t *testing.T) {
	tr := newTracker(config.Default().Health)
	for i := range 200 {
		m := ports(active)
		if i%2 == 1 {
			m = ports(down)
		}
		tr.see(m)
		tr.update(clock(i))
	}
	tr.see(ports(active))
	var s *Snapshot
	now, next := clock(200), time.Time{}
	for range 5 {
		if s, next = tr.update(now); next.IsZero() {
			break
		}
		now = next
	}
	if !s.HCA("0000:40:00.0").Healthy || now.After(clock(231)) {
		t.Errorf("after the last flap, at %s: %+v", now, s.HCA("0000:40:00.0"))
	}
}

func TestNoEventsOfAnExcludedGPU(t *testing.T) {
	m := &machine.Machine{GPUs: []machine.GPU{{UUID: "GPU-0", Product: "NVIDIA DGX Display"}}}
	ill := &Snapshot{Machine: m, GPUs: map[string]State{"GPU-0": {Name: "GPU 0", Cause: Lost, Reason: "lost"}}}
	c := config.Default()
	if got := Events(&Snapshot{}, ill, &c); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if c.GPUs.Exclude = nil; len(Events(&Snapshot{}, ill, &c)) != 1 {
		t.Error("no Event of a GPU that is served")
	}
}
