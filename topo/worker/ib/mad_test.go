package ib

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/worker"
)

func TestRequest(t *testing.T) {
	var want mad
	copy(want[:], []byte{1, 0x81, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0x15, 0, 0, 0, 0, 0, 7})
	copy(want[32:], []byte{0xff, 0xff, 0xff, 0xff})
	copy(want[128:], []byte{0, 1, 33})
	if diff := cmp.Diff(&want, request(0x01020304, attrPortInfo, 7, []byte{1, 33})); diff != "" {
		t.Error(diff)
	}
}

// answerTo is what a good answer to a request looks like.
func answerTo(m mad, change func(*mad)) mad {
	m[offMethod] = methodGetResp
	m[offStatus] = 0x80
	if change != nil {
		change(&m)
	}
	return m
}

// info is a NodeInfo of a 65-port switch, entered by port 8.
func info(change func(*data)) *data {
	d := &data{2: byte(Switch), 3: 65, 36: 8}
	binary.BigEndian.PutUint64(d[12:], 0x2c5eab0300c26480)
	if change != nil {
		change(d)
	}
	return d
}

func TestNodeInfo(t *testing.T) {
	got, err := info(nil).nodeInfo()
	want := Node{Type: Switch, Ports: 65, GUID: "2c5eab0300c26480", System: "2c5eab0300c26480", Port: 8}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	want.System = "2c5eab0300c26000"
	got, err = info(func(d *data) { binary.BigEndian.PutUint64(d[4:], 0x2c5eab0300c26000) }).nodeInfo()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error("a board of a director:", err, diff)
	}
	for name, d := range map[string]*data{
		"no type":      info(func(d *data) { d[2] = 0 }),
		"unknown type": info(func(d *data) { d[2] = 4 }),
		"no GUID":      info(func(d *data) { clear(d[12:20]) }),
		"all ones":     info(func(d *data) { copy(d[12:], bytes.Repeat([]byte{0xff}, 8)) }),
		"port beyond":  info(func(d *data) { d[36] = 66 }),
	} {
		if n, err := d.nodeInfo(); err == nil {
			t.Errorf("%s: %+v", name, n)
		}
	}
}

func TestDecodeUMAD(t *testing.T) {
	m := request(9, attrNodeInfo, 0, []byte{1})
	wrap := func(errno syscall.Errno, body mad) []byte {
		b := make([]byte, umadHeader, umadLength)
		binary.NativeEndian.PutUint32(b[offErrno:], uint32(errno))
		return append(b, body[:]...)
	}
	late := request(8, attrNodeInfo, 0, []byte{1})
	for _, tt := range []struct {
		name string
		in   []byte
		done bool
		want error
	}{
		{"answer", wrap(0, answerTo(*m, nil)), true, nil},
		{"the kernel's mark in the transaction", wrap(0, answerTo(*m, func(a *mad) { a[offTID] = 0x77 })), true, nil},
		{"rejected", wrap(0, answerTo(*m, func(a *mad) { a[offStatus+1] = 0x0c })), true, errStatus},
		{"of another attribute", wrap(0, answerTo(*m, func(a *mad) { a[offAttribute+1]++ })), false, nil},
		{"a request", wrap(0, *m), false, nil},
		{"no answer", wrap(syscall.ETIMEDOUT, *m), true, errNoAnswer},
		{"port went away", wrap(syscall.EIO, *m), true, syscall.EIO},
		{"late answer to another", wrap(0, answerTo(*late, nil)), false, nil},
		{"late failure of another", wrap(syscall.ETIMEDOUT, *late), false, nil},
		{"short", wrap(0, answerTo(*m, nil))[:300], false, nil},
		{"nothing", nil, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer, done, err := decodeUMAD(tt.in, m)
			if done && err == nil {
				_, err = answer.data()
			}
			if done != tt.done || !errors.Is(err, tt.want) {
				t.Errorf("done %v, %v", done, err)
			}
		})
	}
	out := encodeUMAD(5, m)
	if len(out) != 320 || binary.NativeEndian.Uint32(out[:]) != 5 || binary.BigEndian.Uint16(out[28:]) != 0xffff ||
		!bytes.Equal(out[64:], m[:]) {
		t.Errorf("% x", out[:64])
	}
}

// script answers attribute by attribute, or with the kernel's fault.
type script map[uint16]func(m mad) (mad, syscall.Errno)

// device is what the kernel opens: the other end of the socket plays the script.
// A socket's reader is no waiting that synctest knows, so devices are made
// outside its bubbles.
func (s script) device(t *testing.T) *UMAD {
	t.Helper()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	kernel := os.NewFile(uintptr(ends[1]), "kernel")
	go func() {
		defer kernel.Close()
		b := make([]byte, umadLength)
		for {
			if _, err := kernel.Read(b); err != nil {
				return
			}
			m := mad(b[umadHeader:])
			answer, errno := s[binary.BigEndian.Uint16(m[offAttribute:])](m)
			binary.NativeEndian.PutUint32(b[offErrno:], uint32(errno))
			copy(b[umadHeader:], answer[:])
			if _, err := kernel.Write(b); err != nil {
				return
			}
		}
	}()
	return NewUMAD(os.NewFile(uintptr(ends[0]), "umad"), 0)
}

func reply(d *data) func(mad) (mad, syscall.Errno) {
	return func(m mad) (mad, syscall.Errno) {
		return answerTo(m, func(a *mad) { copy(a[offData:], d[:]) }), 0
	}
}

func description(s string) func(mad) (mad, syscall.Errno) {
	var d data
	copy(d[:], s)
	return reply(&d)
}

func TestDiscoverReportsWhatIsWrong(t *testing.T) {
	good := script{attrNodeInfo: reply(info(nil)), attrNodeDesc: description("MF0;leaf-1:MQM9700/U1")}
	port := worker.Port{
		Rail: v1alpha1.Rail{
			ID: "0000:18:00.0", Port: 1, HCA: "mlx5_0", LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive,
		},
		UMAD: []string{"umad0"},
	}
	end := func(name string) []worker.Link {
		return []worker.Link{{
			PortKey: port.Key(), Switch: v1alpha1.Switch{ID: "2c5eab0300c26480", Name: name}, SwitchPort: "8", Confidence: 100,
		}}
	}
	with := func(change func(*worker.Port)) worker.Port {
		p := port
		change(&p)
		return p
	}
	for _, tt := range []struct {
		name   string
		port   worker.Port
		peer   script
		open   error
		ends   []worker.Link
		absent map[worker.PortKey]worker.Absence
		reason string
	}{
		{name: "good", port: port, peer: good, ends: end("MF0;leaf-1:MQM9700/U1")},
		{
			name: "before a subnet manager came", port: with(func(p *worker.Port) { p.LinkState = v1alpha1.LinkInit }), peer: good,
			ends: end("MF0;leaf-1:MQM9700/U1"),
		},
		{
			name: "down", port: with(func(p *worker.Port) { p.LinkState = v1alpha1.LinkDown }), peer: good,
			absent: map[worker.PortKey]worker.Absence{port.Key(): worker.Unavailable},
		},
		{name: "Ethernet", port: with(func(p *worker.Port) { p.LinkLayer = machine.Ethernet }), peer: good},
		{
			name: "name of any bytes", port: port, ends: end("a?\uff21?"),
			peer: script{attrNodeInfo: reply(info(nil)), attrNodeDesc: description("a\x1b\uff21\xff\x00rest")},
		},
		{
			name: "rejects the request for its name", port: port, ends: end(""),
			peer: script{attrNodeInfo: reply(info(nil)), attrNodeDesc: func(m mad) (mad, syscall.Errno) {
				return answerTo(m, func(a *mad) { a[offStatus+1] = 4 }), 0
			}},
		},
		{
			name: "another HCA", port: port, reason: "no switch at the other end of the cable: HCA",
			peer: script{attrNodeInfo: reply(info(func(d *data) { d[2] = byte(CA) })), attrNodeDesc: description("")},
		},
		{
			name: "no answer", port: port, reason: mkey{}.blame(fmt.Errorf("NodeInfo: %w", errNoAnswer)).Error(),
			peer: script{attrNodeInfo: func(m mad) (mad, syscall.Errno) { return m, syscall.ETIMEDOUT }}, absent: map[worker.PortKey]worker.Absence{port.Key(): worker.Unavailable},
		},
		{
			name: "not allowed", port: port, open: syscall.EACCES, reason: "open umad0: permission denied",
			absent: map[worker.PortKey]worker.Absence{port.Key(): worker.Unavailable},
		},
		{
			name: "no module", port: with(func(p *worker.Port) { p.UMAD = nil }), reason: errNoDevice.Error(),
			absent: map[worker.PortKey]worker.Absence{port.Key(): worker.Unavailable},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(func(string) (*UMAD, error) { return tt.peer.device(t), tt.open }, "", nil)
			got := s.Discover(t.Context(), worker.Query{Ports: []worker.Port{tt.port}, Topology: config.Default().Topology})
			want := worker.Report{Links: tt.ends, NoLink: tt.absent}
			if tt.reason != "" {
				want.Skipped = []v1alpha1.Skipped{{Name: "mlx5_0 port 1", Reason: tt.reason}}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	off := New(func(string) (*UMAD, error) { t.Error("asked"); return nil, errNoDevice }, "", nil)
	if r := off.Discover(t.Context(), worker.Query{Ports: []worker.Port{port}}); len(r.Links)+len(r.NoLink) != 0 {
		t.Errorf("a source that is off reports %+v", r)
	}
}

// Of an HCA with two ports, each device reports which port it is.
func TestSecondPortIsFoundByAsking(t *testing.T) {
	self := func(port byte) script {
		return script{attrNodeDesc: description("leaf"), attrNodeInfo: func(m mad) (mad, syscall.Errno) {
			if m[offHopCount] == 0 {
				return reply(info(func(d *data) { d[2], d[3], d[36] = byte(CA), 2, port }))(m)
			}
			if m[offPath+1] != port {
				return m, syscall.ETIMEDOUT // It left by the wrong port.
			}
			return reply(info(func(d *data) { d[36] = 10 + port }))(m)
		}}
	}
	s := New(func(device string) (*UMAD, error) {
		return map[string]script{"umad4": self(1), "umad5": self(2)}[device].device(t), nil
	}, "", nil)
	p := worker.Port{
		Rail: v1alpha1.Rail{ID: "x", Port: 2, LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive},
		UMAD: []string{"umad4", "umad5"},
	}
	r := s.Discover(t.Context(), worker.Query{Ports: []worker.Port{p}, Topology: config.Default().Topology})
	if len(r.Links) != 1 || r.Links[0].SwitchPort != "12" {
		t.Errorf("%+v", r)
	}
}

// spineBehindAll is a leaf whose ports all lead to one spine.
func spineBehindAll(sent *atomic.Int64) script {
	leaf, spine := info(nil), info(func(d *data) { d[12]++ })
	count := func(answer func(mad) (mad, syscall.Errno)) func(mad) (mad, syscall.Errno) {
		return func(m mad) (mad, syscall.Errno) { sent.Add(1); return answer(m) }
	}
	return script{
		attrNodeInfo: count(func(m mad) (mad, syscall.Errno) {
			if m[offHopCount] == 1 {
				return reply(leaf)(m)
			}
			return reply(spine)(m)
		}),
		attrNodeDesc: count(description("spine")),
		attrPortInfo: count(reply(&data{32: 4})),
	}
}

// devices are n of one script, made before they are opened.
func devices(t *testing.T, s script, n int) func(string) (*UMAD, error) {
	t.Helper()
	made := make([]*UMAD, n)
	for i := range made {
		made[i] = s.device(t)
	}
	var opened atomic.Int64
	return func(string) (*UMAD, error) { return made[opened.Add(1)-1], nil }
}

const leafGUID = "2c5eab0300c26480"

var leafPort = worker.Port{
	Rail: v1alpha1.Rail{Port: 1, LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive}, UMAD: []string{"umad0"},
}

// A leaf whose ports all lead to one spine is asked no faster than the pace.
func TestWalkIsPaced(t *testing.T) {
	var sent atomic.Int64
	open := devices(t, spineBehindAll(&sent), 2)
	synctest.Test(t, func(t *testing.T) {
		s := New(open, "", nil)
		began := time.Now()
		uplinks, err := s.walk(t.Context(), &leafPort, leafGUID)
		// 64 ports but our own, state and neighbor of each; the leaf and the spine's name.
		if took := time.Since(began); err != nil || len(uplinks) != 64 || sent.Load() != 2*64+2 || took < time.Duration(sent.Load())*pace {
			t.Errorf("%d uplinks, %d SMPs in %s, %v", len(uplinks), sent.Load(), took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if uplinks, err := s.walk(ctx, &leafPort, leafGUID); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("out of time: %d uplinks, %v", len(uplinks), err)
		}
	})
}

func TestUplinksOnRequest(t *testing.T) {
	var sent atomic.Int64
	open := devices(t, spineBehindAll(&sent), 200)
	synctest.Test(t, func(t *testing.T) {
		changed := notify.New()
		s := New(open, "", changed)
		before := v1alpha1.Uplink{Leaf: leafGUID, Port: 9, Peer: "old"}
		q := worker.Query{
			Ports: []worker.Port{leafPort}, Topology: config.Default().Topology,
			Uplinks: []v1alpha1.Uplink{before, {Leaf: "no longer wanted"}},
		}
		discover := func(what string, uplinks int, first string, skipped ...v1alpha1.Skipped) {
			t.Helper()
			r := s.Discover(t.Context(), q)
			if diff := cmp.Diff(skipped, r.Skipped); diff != "" || len(r.Uplinks) != uplinks {
				t.Errorf("%s: %d uplinks, want %d, skipped (-want +got):\n%s", what, len(r.Uplinks), uplinks, diff)
			}
			if uplinks > 0 && r.Uplinks[0].Peer != first {
				t.Errorf("%s: first %+v", what, r.Uplinks[0])
			}
		}
		discover("unasked", 0, "")
		if n := sent.Load(); n != 2 {
			t.Errorf("%d SMPs unasked", n)
		}
		lost := v1alpha1.Skipped{Name: "uplinks of leaf-x", Reason: "no active port of this node leads to it"}
		q.Leaves = []string{"leaf-x", leafGUID}
		discover("what an earlier worker reported", 1, "old", lost)
		<-changed
		discover("found", 64, "2d5eab0300c26480", lost)
		walks := 0
		for range 100 {
			<-time.After(walkEvery / 10)
			n := sent.Load()
			s.Discover(t.Context(), q)
			select {
			case <-changed:
			case <-time.After(time.Second):
			}
			if sent.Load()-n > 2 {
				walks++
			}
		}
		if walks < 9 || walks > 10 {
			t.Errorf("%d walks in ten intervals", walks)
		}
		q.Leaves = nil
		discover("no longer wanted", 0, "")
	})
}
