//go:build linux

package main

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/replay"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/worker/static"
)

// The fabric is one that could be built: 72 nodes with GPUs, all rails cabled, no
// two cables in one port, and exactly one of them in a leaf of another group.
func TestFabric(t *testing.T) {
	all := members("node1")
	withGPUs, rails := 0, map[string]int{}
	for _, m := range all {
		machine, err := replay.Load("../machines/" + m.machine + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if len(machine.GPUs) > 0 {
			withGPUs++
		}
		rails[m.name] = railsOf(machine)
	}
	if withGPUs != 72 || len(all) != 73 {
		t.Errorf("%d nodes, %d with GPUs", len(all), withGPUs)
	}
	nodes, err := static.Parse(fabricName, []byte(fabricFile(all, func(m member) int { return rails[m.name] })))
	if err != nil {
		t.Fatal(err)
	}
	ports, wrong := map[string]string{}, []string(nil)
	for _, m := range all {
		n := nodes[m.name]
		if diff := cmp.Diff(m.path, n.Path); diff != "" || len(n.Rails) != rails[m.name] {
			t.Errorf("%s: %d rails of %d; path (-want +got):\n%s", m.name, len(n.Rails), rails[m.name], diff)
		}
		for _, r := range n.Rails {
			at := r.Switch.ID + " port " + r.SwitchPort
			if other, taken := ports[at]; taken {
				t.Errorf("%s and %s are both in %s", other, m.name, at)
			}
			ports[at] = m.name
			if r.Switch.ID != fmt.Sprintf("%s-rail%d", m.group, r.Rail) {
				wrong = append(wrong, fmt.Sprint(m.name, " rail ", r.Rail, " in ", at))
			}
		}
	}
	if diff := cmp.Diff([]string{"su3-dgx5 rail 5 in su2-rail5 port 9"}, wrong); diff != "" {
		t.Errorf("cables in another group's leaf (-want +got):\n%s", diff)
	}
}

// The racks are whole on both axes, as the demo has them and when one stands across
// two leaf groups.
func TestRacks(t *testing.T) {
	levels, err := fabric.Preset(fabric.ModeAuto, 0)
	if err != nil {
		t.Fatal(err)
	}
	for moved, want := range map[int]string{
		0: "leaf-rack1-rail0 18, leaf-rack2-rail0 18; nvlink-x.1 18, nvlink-x.2 18; 0 cross",
		6: "leaf-rack1-rail0 24, leaf-rack2-rail0 12; nvlink-x.1 18, nvlink-x.2 18; 1 cross",
	} {
		m, err := fabric.New(fabric.Config{Levels: levels})
		if err != nil {
			t.Fatal(err)
		}
		for _, tray := range members("node1") {
			if tray.rack == 0 {
				continue
			}
			spec := v1alpha1.NodeTopologySpec{NVLinkDomain: fmt.Sprint("x.", tray.rack)}
			if tray.rack == 2 && tray.seat < moved {
				tray.group = "rack1"
			}
			for rail := range int32(4) {
				spec.Rails = append(spec.Rails, v1alpha1.Rail{
					ID: fmt.Sprint("hca", rail), Rail: rail, Role: "fabric", LinkState: v1alpha1.LinkActive,
					Switch: &v1alpha1.Switch{ID: fmt.Sprintf("%s-rail%d", tray.group, rail)},
				})
			}
			m.Put(fabric.Node{Name: tray.name, Ready: true, Report: fabric.NewReader().Read(&spec)})
		}
		s := m.Snapshot(time.Unix(1, 0))
		var axes []string
		for _, axis := range []fabric.Axis{fabric.AxisFabric, fabric.AxisNVLink} {
			var groups []string
			for _, e := range s.Along(axis).Child {
				groups = append(groups, fmt.Sprint(e.Name, " ", e.Nodes.Ready))
			}
			axes = append(axes, strings.Join(groups, ", "))
		}
		if got := fmt.Sprintf("%s; %d cross", strings.Join(axes, "; "), len(s.Crossing)); got != want {
			t.Errorf("with %d trays elsewhere\n%s, want\n%s", moved, got, want)
		}
	}
}

// Two copies of a machine have nothing in common that names a device.
func TestOwn(t *testing.T) {
	seen := map[string]string{}
	for number, rack := range []int{1, 1, 2} {
		m, err := replay.Load("../machines/gb200-tray.json")
		if err != nil {
			t.Fatal(err)
		}
		own(m, number+1, rack)
		name := func(id string) {
			if other, taken := seen[id]; taken {
				t.Errorf("machines %s and %d both have %s", other, number, id)
			}
			seen[id] = fmt.Sprint(number)
		}
		for i := range m.GPUs {
			name(m.GPUs[i].UUID)
			if want := fmt.Sprintf("%02x", rack); m.GPUs[i].Fabric.ClusterUUID[34:] != want {
				t.Errorf("rack %d has the NVLink domain %s", rack, m.GPUs[i].Fabric.ClusterUUID)
			}
		}
		for i := range m.HCAs {
			name(m.HCAs[i].NodeGUID)
		}
	}
}

func TestWorkersReadTheFabricsFile(t *testing.T) {
	configs, err := configure("/demo/fabric.yaml", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if got := configs.Current().Resolve("n1", nil).Topology.StaticFile; got != "/demo/fabric.yaml" {
		t.Errorf("static file %q", got)
	}
}
