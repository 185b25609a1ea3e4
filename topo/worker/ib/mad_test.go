package ib

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

func TestRequest(t *testing.T) {
	m, err := request(0x01020304, attrPortInfo, 7, []byte{1, 33})
	if err != nil {
		t.Fatal(err)
	}
	var want MAD
	copy(want[:], []byte{1, 0x81, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0x15, 0, 0, 0, 0, 0, 7})
	copy(want[32:], []byte{0xff, 0xff, 0xff, 0xff})
	copy(want[128:], []byte{0, 1, 33})
	if diff := cmp.Diff(want, m); diff != "" {
		t.Error(diff)
	}
	if _, err := request(1, attrNodeInfo, 0, make([]byte, longestPath+1)); !errors.Is(err, errRoute) {
		t.Errorf("64 hops: %v", err)
	}
}

// answerTo is what a good answer to a request looks like.
func answerTo(m MAD, change func(*MAD)) []byte {
	m[offMethod] = methodGetResp
	m[offStatus] = 0x80
	if change != nil {
		change(&m)
	}
	return m[:]
}

func TestPayload(t *testing.T) {
	m, err := request(9, attrNodeInfo, 0, []byte{1})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		answer []byte
		want   error
	}{
		{"good", answerTo(m, nil), nil},
		{"the kernel's mark in the transaction", answerTo(m, func(a *MAD) { a[offTID] = 0x77 }), nil},
		{"rejected", answerTo(m, func(a *MAD) { a[offStatus+1] = 0x0c }), errStatus},
		{"of another transaction", answerTo(m, func(a *MAD) { a[offTID+7]++ }), errOther},
		{"of another attribute", answerTo(m, func(a *MAD) { a[offAttribute+1]++ }), errOther},
		{"a request", answerTo(m, func(a *MAD) { a[offMethod] = methodGet }), errOther},
		{"cut short", answerTo(m, nil)[:255], errShort},
		{"nothing", nil, errShort},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := m.payload(tt.answer)
			if !errors.Is(err, tt.want) || (err == nil) != (len(b) == dataLength) {
				t.Errorf("%d bytes, %v; want %v", len(b), err, tt.want)
			}
		})
	}
}

// info is a NodeInfo of a 65-port switch, entered by port 8.
func info(change func(b []byte)) []byte {
	b := make([]byte, dataLength)
	b[2], b[3], b[36] = byte(Switch), 65, 8
	binary.BigEndian.PutUint64(b[12:], 0x2c5eab0300c26480)
	binary.BigEndian.PutUint64(b[20:], 0x2c5eab0300c26481)
	if change != nil {
		change(b)
	}
	return b
}

func TestParseNodeInfo(t *testing.T) {
	got, err := parseNodeInfo(info(nil))
	want := NodeInfo{Type: Switch, Ports: 65, NodeGUID: 0x2c5eab0300c26480, PortGUID: 0x2c5eab0300c26481, LocalPort: 8}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for name, b := range map[string][]byte{
		"no type":         info(func(b []byte) { b[2] = 0 }),
		"unknown type":    info(func(b []byte) { b[2] = 4 }),
		"no GUID":         info(func(b []byte) { clear(b[12:20]) }),
		"all ones":        info(func(b []byte) { copy(b[12:], bytes.Repeat([]byte{0xff}, 8)) }),
		"port beyond":     info(func(b []byte) { b[36] = 66 }),
		"shorter than 64": info(nil)[:63],
	} {
		if n, err := parseNodeInfo(b); err == nil {
			t.Errorf("%s: %+v", name, n)
		}
	}
}

func TestDecodeUMAD(t *testing.T) {
	m, err := request(9, attrNodeInfo, 0, []byte{1})
	if err != nil {
		t.Fatal(err)
	}
	wrap := func(errno syscall.Errno, body []byte) []byte {
		b := make([]byte, umadHeader, umadLength)
		binary.NativeEndian.PutUint32(b[offErrno:], uint32(errno))
		return append(b, body...)
	}
	late, _ := request(8, attrNodeInfo, 0, []byte{1})
	for _, tt := range []struct {
		name string
		in   []byte
		done bool
		want error
	}{
		{"answer", wrap(0, answerTo(m, nil)), true, nil},
		{"no answer", wrap(syscall.ETIMEDOUT, m[:]), true, ErrNoAnswer},
		{"port went away", wrap(syscall.EIO, m[:]), true, syscall.EIO},
		{"late answer to another", wrap(0, answerTo(late, nil)), false, nil},
		{"late failure of another", wrap(syscall.ETIMEDOUT, late[:]), false, nil},
		{"short", wrap(0, answerTo(m, nil))[:300], false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, done, err := decodeUMAD(tt.in, &m)
			if done != tt.done || !errors.Is(err, tt.want) {
				t.Errorf("done %v, %v", done, err)
			}
		})
	}
	out := encodeUMAD(5, &m)
	if len(out) != 320 || binary.NativeEndian.Uint32(out[:]) != 5 || binary.BigEndian.Uint16(out[28:]) != 0xffff ||
		!bytes.Equal(out[64:], m[:]) {
		t.Errorf("% x", out[:64])
	}
}

// script is a transport that answers attribute by attribute.
type script map[uint16]func(m MAD) ([]byte, error)

func (s script) Exchange(_ context.Context, m *MAD) (MAD, error) {
	b, err := s[binary.BigEndian.Uint16(m[offAttribute:])](*m)
	if err != nil {
		return MAD{}, err
	}
	return MAD(b), nil
}
func (script) Close() error { return nil }

func reply(data []byte) func(MAD) ([]byte, error) {
	return func(m MAD) ([]byte, error) {
		return answerTo(m, func(a *MAD) { copy(a[offData:], data) }), nil
	}
}

func fails(err error) func(MAD) ([]byte, error) {
	return func(MAD) ([]byte, error) { return nil, err }
}

func TestDiscoverReportsWhatIsWrong(t *testing.T) {
	good := script{attrNodeInfo: reply(info(nil)), attrNodeDesc: reply([]byte("MF0;leaf-1:MQM9700/U1"))}
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
			peer: script{attrNodeInfo: reply(info(nil)), attrNodeDesc: reply([]byte("a\x1b\uff21\xff\x00rest"))},
		},
		{
			name: "rejects the request for its name", port: port, ends: end(""),
			peer: script{attrNodeInfo: reply(info(nil)), attrNodeDesc: func(m MAD) ([]byte, error) {
				return answerTo(m, func(a *MAD) { a[offStatus+1] = 4 }), nil
			}},
		},
		{
			name: "another HCA", port: port, reason: "no switch at the other end of the cable: HCA",
			peer: script{attrNodeInfo: reply(info(func(b []byte) { b[2] = byte(CA) })), attrNodeDesc: reply(nil)},
		},
		{
			name: "no answer", port: port, reason: "NodeInfo: no answer",
			peer: script{attrNodeInfo: fails(ErrNoAnswer)}, absent: map[worker.PortKey]worker.Absence{port.Key(): worker.Unavailable},
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
			s := New(Options{Open: func(string) (Transport, error) { return tt.peer, tt.open }})
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
	off := New(Options{Open: func(string) (Transport, error) { t.Error("asked"); return nil, errNoDevice }})
	if r := off.Discover(t.Context(), worker.Query{Ports: []worker.Port{port}}); len(r.Links)+len(r.NoLink) != 0 {
		t.Errorf("a source that is off reports %+v", r)
	}
}

// Of an HCA with two ports, each device reports which port it is.
func TestSecondPortIsFoundByAsking(t *testing.T) {
	self := func(port byte) script {
		return script{attrNodeDesc: reply([]byte("leaf")), attrNodeInfo: func(m MAD) ([]byte, error) {
			if m[offHopCount] == 0 {
				return reply(info(func(b []byte) { b[2], b[3], b[36] = byte(CA), 2, port }))(m)
			}
			if m[offPath+1] != port {
				return nil, ErrNoAnswer // It left by the wrong port.
			}
			return reply(info(func(b []byte) { b[36] = 10 + port }))(m)
		}}
	}
	s := New(Options{Open: func(device string) (Transport, error) {
		return map[string]script{"umad4": self(1), "umad5": self(2)}[device], nil
	}})
	p := worker.Port{
		Rail: v1alpha1.Rail{ID: "x", Port: 2, LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive},
		UMAD: []string{"umad4", "umad5"},
	}
	r := s.Discover(t.Context(), worker.Query{Ports: []worker.Port{p}, Topology: config.Default().Topology})
	if len(r.Links) != 1 || r.Links[0].SwitchPort != "12" {
		t.Errorf("%+v", r)
	}
}

// A leaf whose ports all lead to one spine is asked no faster than the pace.
func TestWalkIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		leaf, spine := info(nil), info(func(b []byte) { b[12]++ })
		count := func(answer func(MAD) ([]byte, error)) func(MAD) ([]byte, error) {
			return func(m MAD) ([]byte, error) { sent++; return answer(m) }
		}
		peer := script{
			attrNodeInfo: count(func(m MAD) ([]byte, error) {
				if m[offHopCount] == 1 {
					return reply(leaf)(m)
				}
				return reply(spine)(m)
			}),
			attrNodeDesc: count(reply([]byte("spine"))),
			attrPortInfo: count(reply(append(make([]byte, offPortInfoState), 4, 5<<4))),
		}
		s := New(Options{Open: func(string) (Transport, error) { return peer, nil }})
		p := worker.Port{
			Rail: v1alpha1.Rail{Port: 1, LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive}, UMAD: []string{"umad0"},
		}
		began := time.Now()
		uplinks, err := s.Uplinks(t.Context(), p, "2c5eab0300c26480")
		// 64 ports but our own, state and neighbor of each; the leaf and the spine's name.
		if took := time.Since(began); err != nil || len(uplinks) != 64 || sent != 2*64+2 || took < time.Duration(sent)*defaultPace {
			t.Errorf("%d uplinks, %d SMPs in %s, %v", len(uplinks), sent, took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if uplinks, err := s.Uplinks(ctx, p, "2c5eab0300c26480"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("out of time: %d uplinks, %v", len(uplinks), err)
		}
	})
}

func FuzzMAD(f *testing.F) {
	m, err := request(9, attrNodeInfo, 0, []byte{1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(answerTo(m, func(a *MAD) { copy(a[offData:], info(nil)) }))
	f.Add(append(make([]byte, umadHeader), answerTo(m, nil)...))
	f.Add(answerTo(m, nil)[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		if data, err := m.payload(b); err == nil {
			if n, err := parseNodeInfo(data); err == nil && (n.LocalPort > n.Ports || n.NodeGUID == 0) {
				t.Errorf("%+v", n)
			}
			name := parseNodeDescription(data)
			if len(name) > dataLength || strings.ContainsRune(name, 0) || strings.ToValidUTF8(name, "") != name {
				t.Errorf("%q", name)
			}
			if _, err := parsePortInfo(data); err != nil {
				t.Error(err)
			}
		}
		if answer, done, err := decodeUMAD(b, &m); done && err == nil && !m.Answers(answer[:]) {
			t.Error("not an answer")
		}
	})
}
