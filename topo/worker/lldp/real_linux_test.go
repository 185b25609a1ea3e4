package lldp_test

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/lldpd"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/lldp"
)

func ethernet(id string, netdevs ...string) worker.Port {
	return worker.Port{
		Rail:    v1alpha1.Rail{ID: id, Port: 1, HCA: id, LinkLayer: machine.Ethernet, LinkState: v1alpha1.LinkActive},
		Netdevs: netdevs,
	}
}

func ask(ports ...worker.Port) worker.Query {
	return worker.Query{Ports: ports, Topology: config.Default().Topology}
}

func end(p worker.Port, id, name, port string) worker.Link {
	return worker.Link{PortKey: p.Key(), Switch: v1alpha1.Switch{ID: id, Name: name}, SwitchPort: port, Confidence: 100}
}

// memberships are the LLDP groups that a network device listens to.
func memberships(t *testing.T, netdev string) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/dev_mcast")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if f[1] == netdev && strings.HasPrefix(f[4], "0180c20000") {
			n++
		}
	}
	return n
}

// TestRealSwitches listens to two lldpd as the leaves of four rails.
func TestRealSwitches(t *testing.T) {
	if !lldpd.Isolate(t) {
		return
	}
	ctx := t.Context()
	var leaves []*lldpd.Switch
	for i, rails := range [][2]string{{"rail0", "rail1"}, {"rail2", "rail3"}} {
		s, err := lldpd.NewSwitch(ctx, "dc1-leaf0"+string(rune('0'+i)), "02:00:00:00:ee:0"+string(rune('0'+i)))
		if err != nil {
			t.Fatal(err)
		}
		for n, rail := range rails {
			if err := s.Connect(ctx, rail, "swp"+string(rune('1'+n))); err != nil {
				t.Fatal(err)
			}
		}
		leaves = append(leaves, s)
	}
	source := lldp.New(nil, slog.New(slog.DiscardHandler))
	ports := []worker.Port{ethernet("a", "rail0"), ethernet("b", "rail1"), ethernet("c", "rail2"), ethernet("d", "rail3")}
	waiting := worker.Report{Listening: true, NoLink: map[worker.PortKey]worker.Absence{}}
	for _, p := range ports {
		waiting.NoLink[p.Key()] = worker.Pending
	}
	lldpd.Eventually(t, "links up, no frame yet", func() bool { return cmp.Equal(waiting, source.Discover(ctx, ask(ports...))) })
	for _, s := range leaves {
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if t.Failed() {
				t.Log(s.Log())
			}
		}()
	}
	began := time.Now()
	want := worker.Report{Listening: true, Links: []worker.Link{
		end(ports[0], "02:00:00:00:ee:00", "dc1-leaf00", "swp1"), end(ports[1], "02:00:00:00:ee:00", "dc1-leaf00", "swp2"),
		end(ports[2], "02:00:00:00:ee:01", "dc1-leaf01", "swp1"), end(ports[3], "02:00:00:00:ee:01", "dc1-leaf01", "swp2"),
	}}
	lldpd.Eventually(t, "four switches", func() bool { return cmp.Equal(want, source.Discover(ctx, ask(ports...))) })
	t.Log("all received after", time.Since(began))
	if n := memberships(t, "rail0"); n != 3 {
		t.Errorf("%d groups joined, want 3", n)
	}

	// The switch's port goes down: the answer is gone at once, not after its
	// time to live.
	if err := leaves[0].Port(ctx, "swp2", "down"); err != nil {
		t.Fatal(err)
	}
	down := want
	down.Links = []worker.Link{want.Links[0], want.Links[2], want.Links[3]}
	down.NoLink = map[worker.PortKey]worker.Absence{ports[1].Key(): worker.Unavailable}
	lldpd.Eventually(t, "rail1 down", func() bool { return cmp.Equal(down, source.Discover(ctx, ask(ports...))) })
	if err := leaves[0].Port(ctx, "swp2", "up"); err != nil {
		t.Fatal(err)
	}
	lldpd.Eventually(t, "rail1 up again", func() bool { return cmp.Equal(want, source.Discover(ctx, ask(ports...))) })

	// lldpd sends a shutdown frame when it ends. The cables are where they were.
	if err := leaves[1].Stop(); err != nil {
		t.Fatal(err)
	}
	lldpd.Eventually(t, "leaf 1 has shut down", func() bool { return len(source.Discover(ctx, ask(ports...)).Links) == 2 })
	if r := source.Discover(ctx, ask(ports...)); r.NoLink[ports[2].Key()] != worker.Unavailable || r.Stale == nil ||
		r.Stale.Since.Before(began) {
		t.Errorf("a switch that sends no frames any more: %+v, stale %+v", r.NoLink, r.Stale)
	}

	if r := source.Discover(ctx, ask(ports[0], ethernet("x", "none0"))); len(r.Links) != 1 || len(r.Skipped) != 1 {
		t.Errorf("a network device that is not there: %+v", r)
	}
	if n := memberships(t, "rail2"); n != 0 {
		t.Errorf("%d groups are still joined where no query asks any more", n)
	}

	// Another device of the name: the port is listened to again.
	again := exec.CommandContext(ctx, "sh", "-c", "ip link del rail0 && ip link add rail0 type veth peer name far0 && ip link set far0 up && ip link set rail0 up")
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r := source.Discover(ctx, ask(ports[0])); r.NoLink[ports[0].Key()] != worker.Pending || len(r.Links)+len(r.Skipped) != 0 {
		t.Errorf("another device: %+v", r)
	}
	if n := memberships(t, "rail0"); n != 3 {
		t.Errorf("%d groups joined on the other device, want 3", n)
	}
	source.Discover(ctx, worker.Query{Ports: ports[:1]})
	if n := memberships(t, "rail0"); n != 0 {
		t.Errorf("%d groups are still joined while switched off", n)
	}
	source.Discover(ctx, ask(ports[0]))
	source.Close()
	if n := memberships(t, "rail0"); n != 0 {
		t.Errorf("%d groups are still joined after the end", n)
	}
}

// TestRealSwitchesOfOneIdentity has two switches that lldpd gives the same
// chassis ID, because neither has an address to take.
func TestRealSwitchesOfOneIdentity(t *testing.T) {
	if !lldpd.Isolate(t) {
		return
	}
	ctx := t.Context()
	ports := []worker.Port{ethernet("a", "rail0"), ethernet("b", "rail1")}
	for i, p := range ports {
		s, err := lldpd.NewSwitch(ctx, "leaf"+string(rune('0'+i)), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Connect(ctx, p.Netdevs[0], "swp1"); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	source := lldp.New(nil, slog.New(slog.DiscardHandler))
	defer source.Close()
	var r worker.Report
	lldpd.Eventually(t, "two switches", func() bool {
		r = source.Discover(ctx, ask(ports...))
		return len(r.Links) == 2
	})
	t.Logf("%+v", r.Links)
	if r.Links[0].Switch.ID == r.Links[1].Switch.ID || r.Links[0].Switch.Name != "leaf0" || r.Links[1].Switch.Name != "leaf1" {
		t.Errorf("not distinguished: %+v", r.Links)
	}
}
