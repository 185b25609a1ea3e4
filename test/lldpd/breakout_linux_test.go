package lldpd_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/lldpd"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/lldp"
)

// TestBreakoutPorts has three makes of switches split two ports in two, and four
// nodes on each: those on one port are a block.
func TestBreakoutPorts(t *testing.T) {
	if !lldpd.Isolate(t) {
		return
	}
	ctx := t.Context()
	var names []string
	var ports []worker.Port
	for i, parts := range []string{
		"swp17s0 swp17s1 swp18s0 swp18s1",
		"Ethernet1/5/1 Ethernet1/5/2 Ethernet1/6/1 Ethernet1/6/2",
		"etp5a etp5b etp6a etp6b",
	} {
		s, err := lldpd.NewSwitch(ctx, fmt.Sprintf("leaf%d", i), fmt.Sprintf("02:00:00:00:ee:0%d", i))
		if err != nil {
			t.Fatal(err)
		}
		for part := range strings.FieldsSeq(parts) {
			netdev := fmt.Sprintf("rail%d", len(names))
			if err := s.Connect(ctx, netdev, part); err != nil {
				t.Fatal(err)
			}
			names = append(names, part)
			ports = append(ports, worker.Port{Netdevs: []string{netdev}, Rail: v1alpha1.Rail{
				ID: netdev, Port: 1, HCA: netdev, Role: string(machine.RoleFabric), LinkLayer: machine.Ethernet,
				LinkState: v1alpha1.LinkActive,
			}})
		}
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if t.Failed() {
				t.Log(s.Log())
			}
		}()
	}
	source := lldp.New(nil, slog.New(slog.DiscardHandler))
	defer source.Close()
	var links []worker.Link
	lldpd.Eventually(t, "a frame on every cable", func() bool {
		links = source.Discover(ctx, worker.Query{Ports: ports, Topology: config.Default().Topology}).Links
		return len(links) == len(ports)
	})
	builder := fabric.New(fabric.Preset(fabric.ModeDragonfly, 2))
	for i, l := range links {
		if l.SwitchPort != names[i] {
			t.Errorf("%s is on port %q, want %q", l.ID, l.SwitchPort, names[i])
		}
		rail := ports[i].Rail
		rail.Switch, rail.SwitchPort, rail.Confidence = &l.Switch, l.SwitchPort, l.Confidence
		spec := &v1alpha1.NodeTopologySpec{Rails: []v1alpha1.Rail{rail}}
		builder.Put(fabric.Node{Name: fmt.Sprintf("node%02d", i), Ready: true, Report: fabric.Read(spec)})
	}
	var blocks []string
	for _, block := range builder.Snapshot(time.Unix(1, 0)).Child {
		var nodes []string
		for _, n := range block.Child {
			nodes = append(nodes, n.Name)
		}
		blocks = append(blocks, strings.Join(nodes, " "))
	}
	want := []string{"node00 node01", "node02 node03", "node04 node05", "node06 node07", "node08 node09", "node10 node11"}
	if diff := cmp.Diff(want, blocks); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}
