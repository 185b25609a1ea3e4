package fabric_test

import (
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/topo/fabric"
)

// Nodes are cut into blocks of neighboring ports, whatever names a switch gives to
// ports and to the parts of a port.
func TestBlocksByPortName(t *testing.T) {
	t.Parallel()
	const pairs = "dragonfly-aa-0(a b) dragonfly-aa-1(c d)"
	for _, tt := range []struct{ ports, want string }{
		{"1 2 3 4", pairs},
		{"swp1s0 swp1s1 swp2s0 swp2s1", pairs},
		{"swp17s0 swp17s2 swp18s0 swp18s1", "dragonfly-aa-24(a) dragonfly-aa-25(b c) dragonfly-aa-26(d)"},
		{"swp1s0 swp1s1 swp1s2 swp1s3", pairs},
		{"swp1s0 swp1s2 swp2s0 swp2s2", pairs},
		{"swp1s2 swp2s2 swp3s2 swp4s2", pairs},
		{"Ethernet1/1/1 Ethernet1/1/3 Ethernet1/2/1 Ethernet1/2/3", pairs},
		{"Ethernet1/1/1 Ethernet1/1/2 Ethernet1/2/1 Ethernet1/2/2", pairs},
		{"Ethernet1/1 Ethernet1/2 Ethernet1/3 Ethernet1/4", pairs},
		{"Ethernet1/1 Ethernet1/2 Ethernet2/1 Ethernet2/2", pairs},
		{"Ethernet3/1/1 Ethernet3/1/2 Ethernet3/2/1 Ethernet3/2/2", pairs},
		{"etp1a etp1b etp2a etp2b", pairs},
		{"etp1 etp2 etp3 etp33b", "dragonfly-aa-0(a b) dragonfly-aa-1(c) dragonfly-aa-16(d)"},
		{"et-0/0/0:0 et-0/0/0:1 et-0/0/1:0 et-0/0/1:1", pairs},
		{"HundredGigE1/0/1 HundredGigE1/0/2 HundredGigE1/0/3 HundredGigE1/0/4", pairs},
		{"L01/U1/1 L01/U1/2 L02/U1/1 L02/U1/2", pairs},
		{"00:00:5e:00:53:01 00:00:5e:00:53:02 mgmt 99999999999", "dragonfly-aa(a b c d)"},
	} {
		m := newMap(fabric.Preset(fabric.ModeDragonfly, 0)...)
		for i, port := range strings.Fields(tt.ports) {
			m.Put(node(string(rune('a'+i)), report(cable{leaf: "aa", port: port})))
		}
		if got := outline(treeOf(m.Snapshot(start).Child)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.ports, got, tt.want)
		}
	}
}
