package ib

import (
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

func discover(t *testing.T, s *Source, ports ...worker.Port) worker.Report {
	t.Helper()
	return s.Discover(t.Context(), worker.Query{Ports: ports, Topology: config.Default().Topology})
}

func infiniband(number int, umad ...string) worker.Port {
	return worker.Port{UMAD: umad, Rail: v1alpha1.Rail{
		ID: "0000:18:00.0", Port: int32(number), HCA: "mlx5_0", LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive,
	}}
}

// TestEveryPlaneHasItsSwitch asks the four ports of an SMI device.
func TestEveryPlaneHasItsSwitch(t *testing.T) {
	planes := map[string]*UMAD{}
	var ports []worker.Port
	var want []string
	for i := range 4 {
		name := "umad" + strconv.Itoa(i+1)
		planes[name] = script{
			attrNodeInfo: func(m mad) (mad, syscall.Errno) {
				if int(m[offPath+1]) != i+1 { // The kernel drops what does not leave by this port.
					return m, syscall.ETIMEDOUT
				}
				return reply(info(func(d *data) { d[19] = byte(i) }))(m)
			},
			attrNodeDesc: description("plane-" + strconv.Itoa(i)),
		}.device(t)
		ports = append(ports, infiniband(i+1, name))
		want = append(want, "plane-"+strconv.Itoa(i))
	}
	r := discover(t, New(func(device string) (*UMAD, error) { return planes[device], nil }, "", nil), ports...)
	var got []string
	for _, l := range r.Links {
		got = append(got, l.Switch.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" || len(r.Skipped) != 0 {
		t.Errorf("skipped %v (-want +got):\n%s", r.Skipped, diff)
	}
}

func TestPortsThatCannotAsk(t *testing.T) {
	reject := func(string) (*UMAD, error) { return nil, ErrNotInfiniBand }
	virtual := infiniband(1, "umad0")
	virtual.Virtual = true
	for _, tt := range []struct {
		name string
		port worker.Port
		want string
	}{
		{"several planes", infiniband(1, "umad0"), "several planes without its SMI device (rdma dev add smi0 type SMI parent mlx5_0)"},
		{"virtual function", virtual, "a virtual function has no SMI and cannot ask its switch: name its groups"},
	} {
		r := discover(t, New(reject, "", nil), tt.port)
		if len(r.Skipped) != 1 || !strings.Contains(r.Skipped[0].Reason, tt.want) {
			t.Errorf("%s: %+v", tt.name, r.Skipped)
		}
	}
}

func FuzzMAD(f *testing.F) {
	m := request(9, attrNodeInfo, 0, []byte{1})
	good := answerTo(*m, func(a *mad) { copy(a[offData:], info(nil)[:]) })
	f.Add(good[:])
	f.Add(append(make([]byte, umadHeader), good[:]...))
	f.Add(good[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, done, err := decodeUMAD(b, m)
		if !done || err != nil {
			return
		}
		d, err := answer.data()
		if err != nil {
			return
		}
		if n, err := d.nodeInfo(); err == nil && (n.Port > n.Ports || len(n.GUID) != 16) {
			t.Errorf("%+v", n)
		}
		name := d.nodeDescription()
		if len(name) > len(d) || strings.ContainsRune(name, 0) || strings.ToValidUTF8(name, "") != name {
			t.Errorf("%q", name)
		}
		d.isDown()
	})
}
