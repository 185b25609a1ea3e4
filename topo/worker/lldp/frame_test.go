package lldp

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

func tlv(kind int, value ...byte) []byte {
	return append([]byte{byte(kind<<1 | len(value)>>8), byte(len(value))}, value...)
}

func text(kind int, s string) []byte { return tlv(kind, []byte(s)...) }

// frame is an LLDP frame to the nearest bridge.
func frame(tlvs ...[]byte) []byte {
	head := []byte{0x01, 0x80, 0xc2, 0, 0, 0x0e, 0xce, 0x61, 0xa4, 0x9b, 0xc4, 0x51, 0x88, 0xcc}
	return append(head, bytes.Join(tlvs, nil)...)
}

var (
	chassis = tlv(1, 4, 2, 0, 0, 0, 0xee, 0)
	swp1    = text(2, "\x05swp1")
	ttl120  = tlv(3, 0, 120)
	bridge  = tlv(7, 0, 0x14, 0, 0x04)
	end     = tlv(0)
)

func TestParse(t *testing.T) {
	leaf := Neighbor{Chassis: ID{MAC, "02:00:00:00:ee:00"}, Port: ID{Local, "swp1"}, TTL: 2 * time.Minute}
	with := func(change func(*Neighbor)) Neighbor {
		n := leaf
		change(&n)
		return n
	}
	tagged := frame(chassis, swp1, ttl120, end)
	tagged = append(tagged[:12:12], append([]byte{0x81, 0, 0, 5}, tagged[12:]...)...)
	for _, tt := range []struct {
		name  string
		frame []byte
		want  Neighbor
		err   error
	}{
		{name: "least", frame: frame(chassis, swp1, ttl120, end), want: leaf},
		{name: "padded", frame: append(frame(chassis, swp1, ttl120, end), make([]byte, 30)...), want: leaf},
		{name: "without its end", frame: frame(chassis, swp1, ttl120), want: leaf},
		{name: "in a VLAN", frame: tagged, want: leaf},
		{
			name: "all that is read", frame: frame(chassis, swp1, ttl120, text(4, "node042-rail0"), text(5, "dc1-leaf00"), text(6, "SONiC"), bridge, tlv(127, 0, 0x80, 0xc2, 1, 0, 1), end),
			want: with(func(n *Neighbor) {
				n.PortDescription, n.SystemName, n.Bridge = "node042-rail0", "dc1-leaf00", true
			}),
		},
		{
			name: "could be a bridge but is none", frame: frame(chassis, swp1, ttl120, tlv(7, 0, 0x04, 0, 0x80), end), want: leaf,
		},
		{
			name: "port by address, chassis by IPv6", frame: frame(tlv(1, append([]byte{5, 2, 0xfd}, make([]byte, 15)...)...), tlv(2, 3, 1, 2, 3, 4, 5, 6), ttl120, end),
			want: with(func(n *Neighbor) { n.Chassis, n.Port = ID{Network, "fd00::"}, ID{MAC, "01:02:03:04:05:06"} }),
		},
		{
			name: "a local name, an address of the wrong length", frame: frame(text(1, "\x07vm\x00"), tlv(2, 3, 1, 2), ttl120, end),
			want: with(func(n *Neighbor) { n.Chassis, n.Port = ID{Local, "vm"}, ID{Local, "0102"} }),
		},
		{
			name: "texts of any bytes", frame: frame(text(1, "\x07\xff\x00a"), swp1, ttl120, text(5, " a\x1b[2J\xff\x00hidden"), end),
			want: with(func(n *Neighbor) { n.Chassis, n.SystemName = ID{Local, "ff0061"}, "a?[2J?" }),
		},
		{name: "goodbye", frame: frame(chassis, swp1, tlv(3, 0, 0), end), want: with(func(n *Neighbor) { n.TTL = 0 })},
		{name: "empty", err: errNotLLDP},
		{name: "of another type", frame: append(frame()[:12:12], 0x08, 0x00), err: errNotLLDP},
		{name: "tag without an end", frame: append(frame()[:12:12], 0x81, 0x00, 0, 5), err: errNotLLDP},
		{name: "tag cut off", frame: append(frame()[:12:12], 0x81, 0x00), err: errNotLLDP},
		{name: "larger than jumbo", frame: make([]byte, maxFrame+1), err: errNotLLDP},
		{name: "no port", frame: frame(chassis, ttl120, end), err: errOrder},
		{name: "port first", frame: frame(swp1, chassis, ttl120, end), err: errOrder},
		{name: "ends too early", frame: frame(chassis, swp1, end), err: errOrder},
		{name: "cut", frame: frame(chassis, swp1, ttl120, text(5, "leaf"))[:35], err: errShort},
		{name: "two names", frame: frame(chassis, swp1, ttl120, text(5, "a"), text(5, "b"), end), err: errTwice},
		{name: "empty chassis", frame: frame(tlv(1, 4), swp1, ttl120, end), err: errEmpty},
		{name: "short time to live", frame: frame(chassis, swp1, tlv(3, 1), end), err: errShort},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.frame)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); err == nil && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPortsName(t *testing.T) {
	for _, tt := range []struct {
		n    Neighbor
		want string
	}{
		{Neighbor{Port: ID{Local, "swp1"}, PortDescription: "to node042"}, "swp1"},
		{Neighbor{Port: ID{MAC, "01:02:03:04:05:06"}, PortDescription: "swp1"}, "swp1"},
		{Neighbor{Port: ID{MAC, "01:02:03:04:05:06"}}, "01:02:03:04:05:06"},
		{Neighbor{Port: ID{Local, "517"}, PortDescription: "to node042"}, "517"},
	} {
		if got := tt.n.SwitchPort(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.n, got, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(frame(chassis, swp1, ttl120, end))
	f.Add(frame(chassis, swp1, ttl120, text(4, "d"), text(5, "leaf"), bridge, tlv(127, 1, 2, 3), end))
	f.Add(frame(tlv(1, 5, 1, 10, 0, 0, 1), tlv(2, 7), ttl120))
	f.Add(append(frame()[:12:12], 0x81, 0x00, 0, 5, 0x88, 0xa8, 0, 5, 0x88, 0xcc))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parse(b)
		if err != nil {
			return
		}
		for _, s := range []string{n.SwitchID(false), n.SwitchID(true), n.SwitchPort()} {
			if s == "" || len(s) > worker.MaxName || strings.ToValidUTF8(s, "") != s {
				t.Errorf("%q of %+v", s, n)
			}
		}
		if len(n.SystemName) > worker.MaxSwitchName {
			t.Errorf("%d bytes of name", len(n.SystemName))
		}
		var tab table
		tab.update(n, time.Unix(0, 0))
		if got := tab.neighbors(time.Unix(0, 0)); (len(got) == 1) != (n.TTL > 0) {
			t.Errorf("%d neighbors", len(got))
		}
	})
}

func TestNeighborsExpireAfterTheirTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, slog.New(slog.DiscardHandler))
		eth0 := &device{name: "eth0", since: time.Now(), up: true}
		s.devices["eth0"] = eth0
		changes := 0
		receive := func(tlvs ...[]byte) {
			if s.received(eth0, frame(tlvs...), false) {
				changes++
			}
		}
		key := worker.PortKey{ID: "0000:18:00.0", Port: 1}
		ports := []*worker.Port{{
			Rail:    v1alpha1.Rail{ID: key.ID, Port: key.Port, LinkLayer: machine.Ethernet, LinkState: v1alpha1.LinkActive},
			Netdevs: []string{"eth0"},
		}}
		discover := func(what string, wantLinks string, wantAbsence worker.Absence, wantConfidence int32) {
			t.Helper()
			var r worker.Report
			s.report(&r, ports, nil, nil)
			id, confidence := "", int32(0)
			for _, e := range r.Links {
				id, confidence = id+e.Switch.ID+" "+e.SwitchPort, e.Confidence
			}
			if id != wantLinks || r.NoLink[key] != wantAbsence || confidence != wantConfidence {
				t.Errorf("%s: %q, confidence %d, absence %d; want %q, %d, %d", what, id, confidence, r.NoLink[key], wantLinks, wantConfidence, wantAbsence)
			}
		}
		const leaf = "02:00:00:00:ee:00 swp1"
		discover("at once", "", worker.Pending, 0)
		<-time.After(firstFrame)
		discover("after the first frame's time", "", worker.Unavailable, 0)

		receive(chassis, swp1, ttl120, end)
		discover("received", leaf, worker.Unknown, 100)
		<-time.After(100 * time.Second)
		receive(chassis, swp1, ttl120, end)
		<-time.After(119 * time.Second)
		discover("received again", leaf, worker.Unknown, 100)
		<-time.After(time.Second)
		discover("silent for its time", "", worker.Unavailable, 0)
		var r worker.Report
		if s.report(&r, ports, nil, nil); r.Stale == nil || time.Since(r.Stale.Since) != 120*time.Second {
			t.Errorf("silent for two minutes: %+v", r.Stale)
		}

		receive(chassis, swp1, ttl120, end)
		receive(chassis, swp1, tlv(3, 0, 0), end)
		discover("shut down", "", worker.Unavailable, 0)

		// Another cable, perhaps.
		eth0.link(false)
		discover("down", "", worker.Unavailable, 0)
		eth0.link(true)
		<-time.After(firstFrame)
		discover("up without a frame", "", worker.Unknown, 0)

		// A server's own firmware sends on the cable too; and then a second
		// switch.
		receive(tlv(1, 4, 0, 0, 0, 0, 0, 1), tlv(2, 3, 0, 0, 0, 0, 0, 1), ttl120, end)
		discover("only what is no bridge", "00:00:00:00:00:01 00:00:00:00:00:01", worker.Unknown, 100)
		receive(chassis, swp1, ttl120, bridge, end)
		discover("a bridge is likelier", leaf, worker.Unknown, 100)
		receive(tlv(1, 4, 2, 0, 0, 0, 0xee, 9), swp1, ttl120, bridge, end)
		discover("two switches on one cable", leaf, worker.Unknown, ambiguous)

		if s.received(eth0, nil, true) {
			changes++
		}
		discover("down", "", worker.Unavailable, 0)
		eth0.link(true)
		discover("up again", "", worker.Pending, 0)
		receive([]byte("not LLDP at all, whatever it is"))
		discover("after a bad frame", "", worker.Pending, 0)
		if changes != 7 {
			t.Errorf("%d changes", changes)
		}
	})
}

// One port hears more than the switch behind its cable.
func TestOtherNeighbors(t *testing.T) {
	const host, spine, leaf1, leaf2 = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:08", "02:00:00:00:00:09"
	bridge := func(address, name string) Neighbor {
		return Neighbor{Chassis: ID{MAC, address}, Port: ID{Local, "1"}, SystemName: name, TTL: time.Hour, Bridge: true}
	}
	own := Neighbor{Chassis: ID{MAC, leaf1}, Port: ID{MAC, leaf1}, SystemName: "leaf-1", TTL: time.Hour, Bridge: true}
	for _, tt := range []struct {
		name       string
		eth0, eth1 []Neighbor
		// down is set if eth1 goes down afterwards.
		down bool
		want string
		sure int32
	}{
		{"the host's own bridge", []Neighbor{bridge(host, "x"), bridge(leaf1, "leaf-1")}, nil, false, leaf1, 100},
		{"a bridge with the host's name", []Neighbor{bridge(spine, "Node1.dc"), bridge(leaf1, "leaf-1")}, nil, false, leaf1, 100},
		{
			"one that all ports hear",
			[]Neighbor{bridge(spine, "s"), bridge(leaf1, "leaf-1")},
			[]Neighbor{bridge(spine, "s"), bridge(leaf2, "leaf-2")},
			false, leaf1, ambiguous,
		},
		{"two of one address", []Neighbor{bridge(leaf1, "a")}, []Neighbor{bridge(leaf1, "b")}, false, leaf1 + "@a", 100},
		{"the other is down", []Neighbor{bridge(leaf1, "a")}, []Neighbor{bridge(leaf1, "b")}, true, leaf1 + "@a", 100},
		{"the address of its port", []Neighbor{own}, nil, false, "leaf-1", 100},
	} {
		s := New(nil, slog.New(slog.DiscardHandler))
		var ports []*worker.Port
		for i, list := range [][]Neighbor{tt.eth0, tt.eth1} {
			d := &device{name: "eth" + string(rune('0'+i)), since: time.Now(), up: true}
			for _, n := range list {
				d.table.update(n, time.Now())
			}
			s.devices[d.name] = d
			ports = append(ports, &worker.Port{
				Rail: v1alpha1.Rail{ID: d.name, LinkLayer: machine.Ethernet, LinkState: v1alpha1.LinkActive}, Netdevs: []string{d.name},
			})
		}
		names := map[string]bool{host: true, "node1": true}
		var r worker.Report
		s.report(&r, ports, nil, names)
		if tt.down {
			s.devices["eth1"].link(false)
			r = worker.Report{}
			s.report(&r, ports, nil, names)
		}
		if got := r.Links[0]; got.Switch.ID != tt.want || got.Confidence != tt.sure {
			t.Errorf("%s: %+v, want %s with confidence %d", tt.name, got, tt.want, tt.sure)
		}
	}
}

func TestFloodIsBounded(t *testing.T) {
	var tab table
	now := time.Unix(0, 0)
	for i := range 1000 {
		tab.update(Neighbor{Chassis: ID{MAC, string(rune(i))}, TTL: time.Hour, Scope: NearestNonTPMR}, now)
	}
	want := Neighbor{Chassis: ID{MAC, "leaf"}, TTL: time.Minute, Bridge: true}
	tab.update(want, now)
	if got := tab.neighbors(now); len(got) != maxNeighbors || got[0] != want {
		t.Errorf("%d neighbors, first %+v", len(got), got[0])
	}
}
