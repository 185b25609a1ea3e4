package ib

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

func TestPerformance(t *testing.T) {
	var want mad
	copy(want[:], []byte{1, 4, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0x12})
	want[65] = 8
	if diff := cmp.Diff(&want, performance(0x01020304, attrPortCounters, 8)); diff != "" {
		t.Error(diff)
	}
	var out [umadLength]byte
	toServices(&out, 0x0102, 1)
	// Queue pair, its key, LID; no route by GIDs.
	address := []byte{0, 0, 0, 1, 0x80, 1, 0, 0, 1, 2, 0, 0, 0}
	if got := out[20:33]; !bytes.Equal(address, got) || binary.NativeEndian.Uint16(out[56:]) != 1 {
		t.Errorf("% x", out[:umadHeader])
	}
}

// counting is a switch with LID 9 whose port 8 has these counters; wide ones are absent if they are nil.
func counting(narrow, wide []byte) script {
	lid := &data{32: 4}
	lid[17] = 9
	fill := func(d []byte) func(m mad) (mad, syscall.Errno) {
		return func(m mad) (mad, syscall.Errno) {
			if m[offClass] != classPerformance || m[offData+offPortSelect] != 8 {
				return m, syscall.ETIMEDOUT
			}
			return answerTo(m, func(a *mad) {
				a[offStatus] = 0
				if copy(a[offData:], d); d == nil {
					a[offStatus+1] = 0x0c
				}
			}), 0
		}
	}
	return script{
		attrNodeInfo: reply(info(nil)), attrNodeDesc: description("leaf-1"), attrPortInfo: reply(lid),
		attrPortCounters: fill(narrow), attrPortCountersExtended: fill(wide),
	}
}

// wideErrors are PortCountersExtended with these errors.
func wideErrors(errors ...uint64) []byte {
	d := append([]byte{0, 8}, make([]byte, 70)...)
	for _, n := range errors {
		d = binary.BigEndian.AppendUint64(d, n)
	}
	return d
}

func TestCountersOfTheSwitch(t *testing.T) {
	full := []byte{0, 8, 0, 0, 0xff, 0xff, 3, 0xff, 0, 7}
	changed := func(attribute uint16, answer func(mad) (mad, syscall.Errno)) script {
		s := counting(full, nil)
		s[attribute] = answer
		return s
	}
	silent := func(m mad) (mad, syscall.Errno) { return m, syscall.ETIMEDOUT }
	for _, tt := range []struct {
		name   string
		peer   script
		want   *v1alpha1.Counters
		reason string
	}{
		{
			name: "good", peer: counting([]byte{0, 8, 0, 0, 1, 2, 3, 4, 5, 6}, wideErrors(9e9)),
			want: &v1alpha1.Counters{SymbolErrors: 0x102, LinkErrorRecoveries: 3, LinkDowns: 4, ReceiveErrors: 0x506},
		},
		{
			name: "full, and no wide ones", peer: counting(full, nil),
			want: &v1alpha1.Counters{SymbolErrors: 65535, LinkErrorRecoveries: 3, LinkDowns: 255, ReceiveErrors: 7},
		},
		{
			name: "full, and wide ones", peer: counting(full, wideErrors(9e9, 2, 300, math.MaxUint64)),
			want: &v1alpha1.Counters{SymbolErrors: 9e9, LinkErrorRecoveries: 3, LinkDowns: 300, ReceiveErrors: 7},
		},
		{
			name: "full, and wide traffic alone", peer: counting(full, wideErrors()),
			want: &v1alpha1.Counters{SymbolErrors: 65535, LinkErrorRecoveries: 3, LinkDowns: 255, ReceiveErrors: 7},
		},
		{name: "rejected", peer: counting(nil, nil), reason: "PortCounters: rejected: status 0x000c"},
		{name: "another port's", peer: counting([]byte{0, 7}, nil), reason: "PortCounters: impossible value: of port 7"},
		{name: "no answer", peer: changed(attrPortCounters, silent), reason: "PortCounters: no answer"},
		{name: "no subnet manager", peer: changed(attrPortInfo, reply(&data{})), reason: "impossible value: LID 0 of a switch"},
		{name: "a LID of a group", peer: changed(attrPortInfo, reply(&data{16: 0xc0})), reason: "LID 49152 of a switch"},
		{name: "no PortInfo", peer: changed(attrPortInfo, silent), reason: "PortInfo: no answer; if an M_Key protects"},
	} {
		s := New(func(string) (*UMAD, error) { return tt.peer.device(t), nil }, "", nil)
		q := worker.Query{Ports: []worker.Port{infiniband(1, "umad0")}, Topology: config.Default().Topology, Counted: time.Unix(1, 0)}
		r := s.Discover(t.Context(), q)
		if len(r.Links) != 1 {
			t.Fatalf("%s: %+v", tt.name, r)
		}
		if diff := cmp.Diff(tt.want, r.Links[0].Counters); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		switch {
		case tt.reason == "" && len(r.Skipped) > 0, tt.reason != "" && len(r.Skipped) != 1:
			t.Errorf("%s: skipped %+v", tt.name, r.Skipped)
		case tt.reason != "" && !strings.HasPrefix(r.Skipped[0].Reason, "mlx5_0 port 1: "),
			tt.reason != "" && !strings.Contains(r.Skipped[0].Reason, tt.reason):
			t.Errorf("%s: %q, want %q", tt.name, r.Skipped[0].Reason, tt.reason)
		}
	}
}

// A switch is asked once for each reading of the node's counters, and a missing answer is known until the next one.
func TestCountersAreReadAtTheirPace(t *testing.T) {
	var asked atomic.Int64
	peer := counting(nil, nil)
	answer := peer[attrPortCounters]
	peer[attrPortCounters] = func(m mad) (mad, syscall.Errno) { asked.Add(1); return answer(m) }
	s := New(func(string) (*UMAD, error) { return peer.device(t), nil }, "", nil)
	q := worker.Query{Ports: []worker.Port{infiniband(1, "umad0"), infiniband(1, "umad1")}, Topology: config.Default().Topology}
	q.Ports[1].ID, q.Ports[1].HCA = "0000:19:00.0", "mlx5_1"
	for _, tt := range []struct {
		at            int64
		asked, reason int
	}{{0, 0, 0}, {5, 2, 1}, {5, 2, 1}, {10, 4, 1}} {
		if tt.at > 0 {
			q.Counted = time.Unix(tt.at, 0)
		}
		r := s.Discover(t.Context(), q)
		if len(r.Links) != 2 || int(asked.Load()) != tt.asked || len(r.Skipped) != tt.reason {
			t.Errorf("%d s: asked %d times, want %d: %+v", tt.at, asked.Load(), tt.asked, r)
		}
	}
}

// A device without queue pair 1, as that of several planes, has no counters of switches.
func TestDeviceWithoutServices(t *testing.T) {
	open := func(string) (*UMAD, error) {
		u := counting(nil, nil).device(t)
		u.noServices = true
		return u, nil
	}
	q := worker.Query{Ports: []worker.Port{infiniband(1, "umad0")}, Topology: config.Default().Topology, Counted: time.Unix(1, 0)}
	r := New(open, "", nil).Discover(t.Context(), q)
	if len(r.Links) != 1 || len(r.Skipped) != 1 || !strings.Contains(r.Skipped[0].Reason, errNoServices.Error()) {
		t.Errorf("%+v", r)
	}
}

func FuzzCounters(f *testing.F) {
	f.Add([]byte{0, 8, 0, 0, 1, 2, 3, 4, 5, 6}, wideErrors(1, 2, 3, 4))
	f.Add([]byte{0, 8, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, wideErrors(math.MaxUint64, math.MaxInt64, 0, 256))
	f.Fuzz(func(t *testing.T, narrow, wide []byte) {
		m, w := performance(1, attrPortCounters, 8), performance(1, attrPortCountersExtended, 8)
		copy(m[offData:], narrow)
		copy(w[offData:], wide)
		c := m.counters()
		before := *c
		w.widen(c)
		for name, n := range map[string][3]int64{
			"symbol errors": {before.SymbolErrors, c.SymbolErrors, 1<<16 - 1}, "link downs": {before.LinkDowns, c.LinkDowns, 1<<8 - 1},
			"recoveries":     {before.LinkErrorRecoveries, c.LinkErrorRecoveries, 1<<8 - 1},
			"receive errors": {before.ReceiveErrors, c.ReceiveErrors, 1<<16 - 1},
		} {
			if n[0] < 0 || n[0] > n[2] || n[1] < n[0] {
				t.Errorf("%s: %d, and wide %d", name, n[0], n[1])
			}
		}
	})
}
