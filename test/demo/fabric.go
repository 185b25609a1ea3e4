//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// member is a node of the fleet: what it replays, and where its cables go.
type member struct {
	name string
	// machine is the file in test/machines.
	machine string
	// group is what the leaves of its rails are called after.
	group string
	// path are its groups where a file names them, top first.
	path []string
	// rack distinguishes NVLink domains; 0 is none.
	rack int
	// fabricOnly nodes are there for their cables: no daemon labels them, and
	// the demo's own pods stay away.
	fabricOnly bool
	// seat is its place in the group, from 0, and so the port of each leaf.
	seat int
}

// The fabric: what every group has, and the one cable that is in the wrong leaf.
const (
	units, unitNodes = 4, 8  // Groups of DGX H100, a leaf for each rail.
	racks, rackNodes = 2, 18 // NVL72.
	wrongNode        = "su3-dgx5"
	wrongRail        = 5
	wrongGroup       = "su2"
)

// members are 72 nodes with GPUs: 32 DGX H100 in four groups of eight rails, 36
// GB200 trays in two NVL72 racks, and four others in two pairs, which a file puts
// into a switchbox; and one node for storage, which has no cable of the fabric.
func members(realNode string) []member {
	all := []member{
		{name: "h20-1", machine: "h20-4nic", group: "pair1", path: []string{"switchbox-1", "dragonfly-1"}},
		{name: "h20-2", machine: "h20-4nic", group: "pair1", path: []string{"switchbox-1", "dragonfly-1"}, seat: 1},
		{name: "h800-1", machine: "h800-8ib-bond", group: "pair2", path: []string{"switchbox-1", "dragonfly-2"}},
		{name: "mixed-1", machine: "mixed-l40s-h100", group: "pair2", path: []string{"switchbox-1", "dragonfly-2"}, seat: 1},
		{name: "storage1", machine: "amd-epyc-no-gpu"},
		{name: realNode, machine: "dgx-h100", group: "su1"},
		{name: "gb200-1", machine: "gb200-tray", group: "rack1", rack: 1},
	}
	for unit := 1; unit <= units; unit++ {
		for seat := range unitNodes {
			if unit > 1 || seat > 0 { // The first is the real node.
				all = append(all, member{
					name: fmt.Sprintf("su%d-dgx%d", unit, seat+1), machine: "dgx-h100", group: fmt.Sprintf("su%d", unit),
					seat: seat, fabricOnly: true,
				})
			}
		}
	}
	for rack := 1; rack <= racks; rack++ {
		for seat := range rackNodes {
			if rack > 1 || seat > 0 { // The first is gb200-1.
				all = append(all, member{
					name: fmt.Sprintf("r%d-tray%02d", rack, seat+1), machine: "gb200-tray", group: fmt.Sprintf("rack%d", rack),
					rack: rack, seat: seat, fabricOnly: true,
				})
			}
		}
	}
	return all
}

// fabricFile is what an operator writes for `topology.staticFile`: the leaf and
// its port behind every rail. rails is how many the node has.
func fabricFile(all []member, rails func(member) int) string {
	var b strings.Builder
	b.WriteString("# Which switch, and which of its ports, each rail's cable goes to.\nversion: v1\nnodes:\n")
	for _, m := range all {
		if m.group == "" {
			continue
		}
		fmt.Fprintf(&b, "  %s:\n", m.name)
		if m.path != nil {
			fmt.Fprintf(&b, "    path: [%s]\n", strings.Join(m.path, ", "))
		}
		b.WriteString("    rails:\n")
		for rail := range rails(m) {
			group, port := m.group, m.seat+1
			if m.name == wrongNode && rail == wrongRail {
				group, port = wrongGroup, unitNodes+1 // The first that is free there.
			}
			fmt.Fprintf(&b, "      %d: {switch: %s-rail%d, port: %q}\n", rail, group, rail, fmt.Sprint(port))
		}
	}
	return b.String()
}

// railsOf counts the HCAs that are there for the fabric.
func railsOf(m *machine.Machine) (n int) {
	for i := range m.HCAs {
		if m.HCAs[i].Role == machine.RoleFabric {
			n++
		}
	}
	return n
}

// own makes a copy of a machine another machine: no two have the same GPUs and
// adapters, and a rack's NVLink domain is its own.
func own(m *machine.Machine, number, rack int) {
	guid := func(text *string) {
		if groups := strings.Split(*text, ":"); len(groups) == 4 {
			groups[1] = fmt.Sprintf("%04x", number)
			*text = strings.Join(groups, ":")
		}
	}
	for i := range m.HCAs {
		h := &m.HCAs[i]
		guid(&h.NodeGUID)
		guid(&h.SysImageGUID)
		for p := range h.Ports {
			guid(&h.Ports[p].GUID)
		}
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		g.UUID = g.UUID[:len(g.UUID)-4] + fmt.Sprintf("%04x", number)
		if g.Fabric != nil && rack > 0 {
			id := g.Fabric.ClusterUUID
			g.Fabric.ClusterUUID = id[:len(id)-2] + fmt.Sprintf("%02x", rack)
		}
	}
}

// writeFleet writes the machine file of every node but the real one, and the file
// of cables, into a directory. It returns how many GPUs each node has.
func (s *stage) writeFleet(dir string) (gpus map[string]int, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make room for the fleet: %w", err)
	}
	gpus = map[string]int{}
	rails := map[string]int{}
	all := members(s.Node())
	for number, node := range all {
		text, err := os.ReadFile(s.dump(node.machine))
		if err != nil {
			return nil, fmt.Errorf("machine of %s: %w", node.name, err)
		}
		m, err := machine.Decode(text)
		if err != nil {
			return nil, fmt.Errorf("machine of %s: %w", node.name, err)
		}
		gpus[node.name], rails[node.name] = len(m.GPUs), railsOf(m)
		if node.name == s.Node() {
			continue // Its pods replay the file as it is.
		}
		m.Node = node.name
		own(m, number+1, node.rack)
		if text, err = machine.Encode(m); err != nil {
			return nil, fmt.Errorf("machine of %s: %w", node.name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, node.name+".json"), text, 0o600); err != nil {
			return nil, fmt.Errorf("machine of %s: %w", node.name, err)
		}
	}
	file := fabricFile(all, func(m member) int { return rails[m.name] })
	return gpus, os.WriteFile(filepath.Join(dir, fabricName), []byte(file), 0o600)
}

// fabricName is the file of cables.
const fabricName = "fabric.yaml"
