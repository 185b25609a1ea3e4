package ib

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

func TestQuery(t *testing.T) {
	var want mad
	copy(want[:], []byte{1, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0x20})
	copy(want[48:], []byte{0, 0, 0, 0, 0, 0, 0, 3, 0x12, 0x34, 1})
	m := query(0x01020304, attrLinkRecord, linkFromLID|linkFromPort, 0x12, 0x34, 1)
	if diff := cmp.Diff(&want, m); diff != "" {
		t.Error(diff)
	}
	p := function()
	p.SMLID, p.PKeyIndex = 0x0102, 1
	out := encodeUMAD(5, m)
	if err := toAdministrator(&out, &p); err != nil {
		t.Fatal(err)
	}
	// Queue pair, its key, LID; a route to the administrator's GID.
	address := []byte{
		0, 0, 0, 1, 0x80, 1, 0, 0, 1, 2, 0, 0, 1, 0, 0, 0,
		0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2,
	}
	if got := out[20:52]; !bytes.Equal(address, got) || binary.NativeEndian.Uint16(out[56:]) != 1 {
		t.Errorf("% x", out[:umadHeader])
	}
}

// function is a virtual function on LID 0x1234.
func function() worker.Port {
	p := infiniband(1, "umad0")
	p.Virtual, p.Subnet, p.LID, p.SMLID = true, "fe80000000000000", 0x1234, 1
	return p
}

// records are the administrator's of a cable into port 8 of the switch with LID 9.
func records(link, node func(record []byte)) script {
	fill := func(record []byte, change func([]byte)) func(mad) (mad, syscall.Errno) {
		return func(m mad) (mad, syscall.Errno) {
			if m[offClass] != classAdministration {
				return m, syscall.ETIMEDOUT
			}
			return answerTo(m, func(a *mad) {
				a[offStatus] = 0
				copy(a[offRecord:], record)
				if change != nil {
					change(a[offRecord:])
				}
			}), 0
		}
	}
	entry := append([]byte{0, 9, 0, 0}, info(func(d *data) { d[36] = 0 })[:40]...)
	return script{
		attrLinkRecord: fill([]byte{0x12, 0x34, 1, 8, 0, 9}, link),
		attrNodeInfo:   fill(append(entry, "leaf-1"...), node),
	}
}

func TestRecordsOfAVirtualFunction(t *testing.T) {
	for _, tt := range []struct {
		name       string
		link, node func([]byte)
		change     func(*worker.Port)
		reason     string
	}{
		{name: "good"},
		{
			name: "before a subnet manager came", change: func(p *worker.Port) { p.LID, p.SMLID = 0, 0 },
			reason: "no subnet manager",
		},
		{name: "another port's link", link: func(r []byte) { r[1]++ }, reason: "LinkRecord: impossible value: from LID 4661"},
		{name: "a link to no LID", link: func(r []byte) { r[5] = 0 }, reason: "LinkRecord: impossible value: to LID 0"},
		{name: "a link to a group", link: func(r []byte) { r[4] = 0xc0 }, reason: "LinkRecord: impossible value: to LID"},
		{name: "another node", node: func(r []byte) { r[1]++ }, reason: "NodeRecord: impossible value: of LID 10"},
		{name: "a port beyond", link: func(r []byte) { r[3] = 66 }, reason: "NodeRecord: impossible value: port 66 of 65"},
	} {
		p := function()
		if tt.change != nil {
			tt.change(&p)
		}
		r := discover(t, New(devices(t, records(tt.link, tt.node), 1), "", nil), p)
		switch {
		case tt.reason == "":
			want := []worker.Link{{
				PortKey: p.Key(), Switch: v1alpha1.Switch{ID: leafGUID, Name: "leaf-1"}, SwitchPort: "8", Confidence: 100,
			}}
			if diff := cmp.Diff(want, r.Links); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		case len(r.Links) != 0 || len(r.Skipped) != 1 || !strings.Contains(r.Skipped[0].Reason, tt.reason):
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}

// The administrator is one for the whole fabric, so it is not asked in every pass.
func TestRecordsAreKept(t *testing.T) {
	var asked atomic.Int64
	s := records(nil, nil)
	answer := s[attrLinkRecord]
	s[attrLinkRecord] = func(m mad) (mad, syscall.Errno) { asked.Add(1); return answer(m) }
	open := devices(t, s, 4)
	synctest.Test(t, func(t *testing.T) {
		source := New(open, "", nil)
		pass := func(want int64, p worker.Port) {
			t.Helper()
			q := worker.Query{Ports: []worker.Port{p}, Topology: config.Default().Topology}
			if r := source.Discover(t.Context(), q); len(r.Links) != 1 || asked.Load() != want {
				t.Errorf("asked %d times, want %d: %+v", asked.Load(), want, r)
			}
		}
		p := function()
		pass(1, p)
		pass(1, p)
		<-time.After(recordAge)
		pass(2, p)
		p.SMLID = 2 // A standby took over.
		pass(2, p)
		q := worker.Query{Ports: []worker.Port{p}, Topology: config.Default().Topology, Leaves: []string{leafGUID}}
		if r := source.Discover(t.Context(), q); len(r.Skipped) != 1 || !strings.Contains(r.Skipped[0].Reason, "uplinks") {
			t.Errorf("uplinks: %+v", r.Skipped)
		}
	})
}

func FuzzRecords(f *testing.F) {
	for _, attribute := range []uint16{attrLinkRecord, attrNodeInfo} {
		m, _ := records(nil, nil)[attribute](*query(1, attribute, 0))
		f.Add(m[offRecord:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := query(1, attrLinkRecord, 0, b...)
		if lid, port, err := m.link(0x1234, 1); err == nil && (lid == 0 || lid > lastUnicastLID || port == 0) {
			t.Errorf("LID %d port %d", lid, port)
		}
		n, err := m.node(9, 8)
		if err != nil {
			return
		}
		if n.Port != 8 || n.Port > n.Ports || len(n.GUID) != 16 || strings.ToValidUTF8(n.Name, "") != n.Name {
			t.Errorf("%+v", n)
		}
	})
}
