package fabric_test

import (
	"fmt"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// hostile are reports that make every list long that a report can make long.
func hostile(name string, i int) fabric.Node {
	spec := &v1alpha1.NodeTopologySpec{}
	switch name {
	case "one leaf for all":
		spec = onto("1")
	case "one leaf for all and one for each":
		spec = onto("1", fmt.Sprintf("%x", i+16))
	case "one GUID for all":
		spec = onto(fmt.Sprintf("%x", i/8))
		spec.Rails[0].GUID = "1"
	case "contradicting paths":
		spec = pathed(fmt.Sprintf("switchbox-%d", i), "dragonfly-1")
	case "as many leaves as a report can have":
		var leaves []string
		for rail := range 128 {
			leaves = append(leaves, fmt.Sprintf("%x", i/4*128+rail))
		}
		spec = onto(leaves...)
	case "every other node's leaf":
		spec = onto("1", fmt.Sprintf("%x", i%100), fmt.Sprintf("%x", i%1000), fmt.Sprintf("%x", i))
	case "every node reports all uplinks":
		spec = onto(fmt.Sprintf("%x", i/16))
		for u := range 64 {
			spec.Uplinks = append(spec.Uplinks, v1alpha1.Uplink{Leaf: fmt.Sprintf("%x", u), Peer: fmt.Sprintf("%x", i*64+u)})
		}
	case "nodes in no group":
		spec = nil
	}
	return node(fmt.Sprintf("node%06d", i), spec)
}

// BenchmarkHostile is a first tree of such reports, and a change after it.
func BenchmarkHostile(b *testing.B) {
	for _, name := range []string{
		"one leaf for all", "one leaf for all and one for each", "one GUID for all", "contradicting paths",
		"as many leaves as a report can have", "every other node's leaf", "every node reports all uplinks",
		"nodes in no group",
	} {
		count := 16384
		if name == "as many leaves as a report can have" {
			count = 1024
		}
		nodes := make([]fabric.Node, count)
		for i := range nodes {
			nodes[i] = hostile(name, i)
		}
		var m *fabric.Builder
		first := func(b *testing.B) {
			b.Helper()
			m = newMap(b, preset(b, fabric.ModeAuto)...)
			put(m, nodes...)
		}
		b.Run("first/"+name, func(b *testing.B) {
			for b.Loop() {
				first(b)
			}
		})
		b.Run("change/"+name, func(b *testing.B) {
			first(b)
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 {
					m.Remove(nodes[count/2].Name)
				} else {
					m.Put(nodes[count/2])
				}
				m.Snapshot(start)
			}
		})
	}
}
