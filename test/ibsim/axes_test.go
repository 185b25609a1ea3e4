package ibsim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/test/ibsim"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/worker/ib"
)

// Four NVL72 racks of 18 trays over leaves of 32, 32 and 8, by the switches' own
// answers: three leaf groups, four whole racks, and no finding.
func TestRacksOverLeaves(t *testing.T) {
	tree := ibsim.FatTree{Hosts: 72, Rails: 2, PerUnit: 32, PerLeaf: 2, Spines: 1}
	sim := simulate(t, tree.Write, tree.HCA(0, 0))
	levels, err := fabric.Preset(fabric.ModeAuto, 0)
	if err != nil {
		t.Fatal(err)
	}
	builder, err := fabric.New(fabric.Config{Levels: levels})
	if err != nil {
		t.Fatal(err)
	}
	source, reader := ib.New(sim.Open, "", nil), fabric.NewReader()
	for i := range tree.Hosts {
		spec := report(t, source, host{hcas: []string{tree.HCA(i, 0), tree.HCA(i, 1)}, gpus: 4})
		spec.NVLinkDomain = fmt.Sprint("rack.", i/18)
		builder.Put(fabric.Node{Name: fmt.Sprintf("tray%02d", i), Ready: true, Report: reader.Read(spec)})
	}
	s := builder.Snapshot(time.Unix(1, 0))
	got := map[fabric.Axis][]int{}
	for _, axis := range []fabric.Axis{fabric.AxisFabric, fabric.AxisNVLink} {
		for _, e := range s.Along(axis).Child {
			got[axis] = append(got[axis], e.Nodes.Ready)
		}
	}
	want := map[fabric.Axis][]int{fabric.AxisFabric: {32, 32, 8}, fabric.AxisNVLink: {18, 18, 18, 18}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes of the groups (-want +got):\n%s", diff)
	}
	if found := s.Findings(); len(found) > 0 || len(s.Crossing) != 2 {
		t.Errorf("%d racks cross, findings %+v", len(s.Crossing), found)
	}
}
