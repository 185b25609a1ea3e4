package preferred_test

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/preferred"
	"github.com/heddle-dev/heddle/test/machines"
)

// mask and list translate between masks and indices of GPUs.
func mask(gpus ...int) uint64 {
	var set uint64
	for _, g := range gpus {
		set |= 1 << g
	}
	return set
}

func list(set uint64) []int {
	out := []int{}
	for ; set != 0; set &= set - 1 {
		out = append(out, bits.TrailingZeros64(set))
	}
	return out
}

// hypercube is a DGX-1 with V100: two quads of GPUs, of which each has one or
// two NVLinks to three in its quad and one in the other
// (DGX-1 With Tesla V100 System Architecture, figure 4).
func hypercube() *machine.Machine {
	m := plain(8, 4)
	for _, l := range [][3]int{
		{0, 1, 1},
		{0, 2, 1},
		{0, 3, 2},
		{0, 4, 2},
		{1, 2, 2},
		{1, 3, 1},
		{1, 5, 2},
		{2, 3, 2},
		{2, 6, 1},
		{3, 7, 1},
		{4, 5, 1},
		{4, 6, 1},
		{4, 7, 2},
		{5, 6, 2},
		{5, 7, 1},
		{6, 7, 2},
	} {
		connect(m, l[0], l[1], l[2])
	}
	return m
}

// plain has n GPUs without NVLinks, perNode of them on each NUMA node.
func plain(n, perNode int) *machine.Machine {
	m := &machine.Machine{}
	for i := range n {
		node := i / perNode
		if i%perNode == 0 {
			m.CPU.NUMA = append(m.CPU.NUMA, machine.NUMANode{ID: node, CPUs: fmt.Sprint(node)})
		}
		address := fmt.Sprintf("0000:%02x:00.0", i+1)
		m.PCI = append(m.PCI, machine.PCIFunction{Address: address, Root: fmt.Sprintf("pci0000:%02x", i), NUMA: new(node)})
		m.GPUs = append(m.GPUs, machine.GPU{UUID: fmt.Sprintf("GPU-%d", i), PCI: address})
	}
	return m
}

func connect(m *machine.Machine, i, j, links int) {
	for _, end := range [][2]int{{i, j}, {j, i}} {
		g := &m.GPUs[end[0]]
		g.NVLinks = append(g.NVLinks, machine.NVLink{Peer: m.GPUs[end[1]].PCI, Links: links})
	}
}

// switched puts every GPU but some on NVSwitches.
func switched(m *machine.Machine, off ...int) *machine.Machine {
	for i := range m.GPUs {
		if !slices.Contains(off, i) {
			m.GPUs[i].NVLinks = []machine.NVLink{{Peer: machine.PeerNVSwitch, Links: 18}}
		}
	}
	return m
}

func lose(m *machine.Machine, gpus ...int) *machine.Machine {
	for _, g := range gpus {
		m.GPUs[g].Health.State = machine.Lost
	}
	return m
}

func bridged(n, perNode int) *machine.Machine {
	m := plain(n, perNode)
	for i := 0; i < n; i += 2 {
		connect(m, i, i+1, 12)
	}
	return m
}

func TestChoose(t *testing.T) {
	all8, all16 := mask(0, 1, 2, 3, 4, 5, 6, 7), uint64(0xffff)
	tests := []struct {
		name            string
		machine         *machine.Machine
		available, must uint64
		size            int
		want            []int
	}{
		{"a mesh keeps to one NUMA node", switched(plain(8, 4)), mask(0, 2, 4, 5, 6, 7), 0, 4, []int{4, 5, 6, 7}},
		{"a GPU off NVLink is the one to give alone", switched(plain(8, 4), 2), all8, 0, 1, []int{2}},
		{"eight GPUs off NVLink of 16 are not for two", switched(plain(16, 8), 0, 1, 2, 3, 4, 5, 6, 7), all16, 0, 2, []int{8, 9}},
		{"two of a hypercube have two links and one NUMA node", hypercube(), all8, 0, 2, []int{0, 3}},
		{"what must be is in it", hypercube(), all8, mask(6), 2, []int{5, 6}},
		{"a lost GPU is not chosen", lose(bridged(4, 2), 1), mask(0, 1, 2, 3), 0, 2, []int{2, 3}},
		{"nor counted for the rest", lose(bridged(6, 2), 1), mask(0, 1, 2, 3, 4, 5), 0, 1, []int{0}},
		{"a lost GPU that must be is", lose(bridged(4, 2), 1), mask(0, 1, 2, 3), mask(1), 2, []int{0, 1}},
		{"lost GPUs fill up", lose(bridged(4, 2), 0, 1), mask(0, 1, 2), 0, 2, []int{0, 2}},
		{"nothing known: the first", &machine.Machine{GPUs: make([]machine.GPU, 4)}, mask(1, 2, 3), 0, 2, []int{1, 2}},
		{"more than a table holds", bridged(20, 10), mask(0, 2, 3, 5, 7, 18, 19), 0, 2, []int{18, 19}},
		{"more than a table holds, one", bridged(20, 10), mask(2, 3, 5, 18, 19), 0, 1, []int{5}},
		{"more than a table holds, with one", bridged(20, 10), mask(0, 2, 3, 5, 7, 18, 19), mask(19), 2, []int{18, 19}},
		{"more than a mask holds", bridged(80, 10), ^uint64(0), 0, 2, []int{60, 61}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := preferred.New(nil, test.machine).Choose(test.available, test.must, test.size)
			if diff := cmp.Diff(test.want, list(got)); diff != "" {
				t.Errorf("chosen (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPairs(t *testing.T) {
	slow, fast := new(int64(200_000)), new(int64(450_000))
	near := plain(2, 1)
	near.CPU.NUMA[0].Distances, near.CPU.NUMA[1].Distances = []int{10, 12}, []int{12, 10}
	far := plain(2, 1)
	far.CPU.NUMA[0].Distances, far.CPU.NUMA[1].Distances = []int{10, 32}, []int{32, 10}
	oneSided := plain(2, 2)
	oneSided.GPUs[0].NVLinks = []machine.NVLink{{Peer: oneSided.GPUs[1].PCI, Links: 4}}
	uneven := switched(plain(2, 2))
	uneven.GPUs[0].NVLinks[0].MBps, uneven.GPUs[1].NVLinks[0].MBps = slow, fast
	absurd := switched(plain(2, 2))
	for i := range absurd.GPUs {
		absurd.GPUs[i].NVLinks[0].MBps = new(int64(1 << 62))
	}
	under := func(a, b []string) *machine.Machine {
		m := plain(2, 2)
		m.PCI[0].Root, m.PCI[1].Root = "pci0000:00", "pci0000:00"
		m.PCI[0].Upstream, m.PCI[1].Upstream = a, b
		return m
	}
	placeless := plain(2, 2)
	placeless.PCI = nil
	for _, test := range []struct {
		name string
		m    *machine.Machine
		want int
	}{
		{"no place in the tree", placeless, 0},
		{"sockets", plain(2, 1), 6_000},
		{"sockets by distance", far, 6_000},
		{"one socket", near, 8_000},
		{"one NUMA node", plain(2, 2), 10_000},
		{"one host bridge", under([]string{"a"}, []string{"b"}), 12_000},
		{"switches under one port", under([]string{"r", "u", "a", "x", "y"}, []string{"r", "u", "b", "z", "w"}), 14_000},
		{"one switch", under([]string{"r", "u", "a"}, []string{"r", "u", "b"}), 16_000},
		{"NVLinks of unknown speed", switched(plain(2, 2)), 18*25_000 + 10_000},
		{"NVLinks of two speeds", uneven, 200_000 + 10_000},
		{"NVLinks that one end reports", oneSided, 10_000},
		{"NVLinks that no machine has", absurd, 10_000_000},
	} {
		if got := preferred.New(nil, test.m).Pair(0, 1); got != test.want {
			t.Errorf("%s: %d MB/s, want %d", test.name, got, test.want)
		}
	}
}

func TestAlignedHCAs(t *testing.T) {
	for _, test := range []struct {
		machine string
		want    []int
	}{
		{"dgx-h100", []int{1, 2, 3, 4, 5, 6, 7, 8}},
		{"h20-4nic", []int{1, 1, 2, 2, 3, 3, 4, 4}},
		// GPU6 is lost, the port of GPU3's HCA down, that of GPU5 unreadable.
		{"one-dead-port", []int{1, 1, 2, 3, 4, 4, 5}},
		{"azure-ndv5", []int{0, 0, 0, 0, 0, 0, 0, 0}},
		{"amd-epyc-no-gpu", []int{}},
	} {
		m := machines.Load(t, test.machine)
		got := []int{}
		for _, e := range preferred.New(nil, m).Table(^uint64(0)) {
			got = append(got, e.HCAs)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.machine, diff)
		}
	}
}

// TestMetaX reads the annotations as HAMi does, whose sums must not reach 2000.
func TestMetaX(t *testing.T) {
	s := preferred.New(nil, machines.Load(t, "metax-c500-box"))
	var scores, losses map[int]int
	ofScores, ofLosses := s.MetaX(0xff)
	for text, into := range map[string]*map[int]int{ofScores: &scores, ofLosses: &losses} {
		if err := json.Unmarshal([]byte(text), into); err != nil || len(*into) != 8 {
			t.Fatalf("%s: %v", text, err)
		}
	}
	// Two groups of four joined by MetaXLink: four GPUs are one of them, which is 16 pairs away from the other.
	joined, apart := s.Pair(0, 1)/1000, s.Pair(0, 4)/1000
	if scores[1] != 0 || scores[4] != 6*joined || scores[8] != 12*joined+16*apart || scores[8] >= 2000 ||
		losses[1] != 3*joined+4*apart || losses[4] != 16*apart || losses[8] != 0 {
		t.Errorf("scores %s, losses %s", ofScores, ofLosses)
	}
	if scores, losses := s.MetaX(0); scores != "{}" || losses != "{}" {
		t.Errorf("without free GPUs: scores %s, losses %s", scores, losses)
	}
}

func TestChooseAllocatesNothing(t *testing.T) {
	s := preferred.New(nil, switched(plain(16, 8), 3))
	if n := testing.AllocsPerRun(10, func() { s.Choose(0xffff, 0, 8) }); n > 0 {
		t.Errorf("%v allocations for each request", n)
	}
}

func TestRenewKeepsWhatDidNotChange(t *testing.T) {
	m := hypercube()
	old := preferred.New(nil, m)
	lost := preferred.New(old, lose(hypercube(), 0))
	if diff := cmp.Diff(mask(1, 2, 3, 4, 5, 6, 7), lost.Usable()); diff != "" {
		t.Error(diff)
	}
	if a, b := preferred.Annotation(lost.Table(0xfe)), preferred.Annotation(preferred.New(nil, lose(hypercube(), 0)).Table(0xfe)); a != b {
		t.Errorf("renewed: %s\nnew: %s", a, b)
	}
	connect(m, 0, 7, 8)
	if got := preferred.New(old, m).Choose(0xff, 0, 2); got != mask(0, 7) {
		t.Errorf("a new link is not seen: %v chosen", list(got))
	}
}
