package host

import (
	"iter"
	"math/bits"
	"slices"
	"strings"

	models "github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// pcieSwitch is the deepest bridge that some GPUs share with HCAs.
type pcieSwitch struct {
	bridge
	// level is the bridge's place on the path from the root.
	level, gpus int
	hcas        []*candidate
}

// nextToGPUs chooses the fabric from the HCAs next to GPUs. near is false if fewer
// than half of the GPUs share a bridge with one. Of all sorts of HCAs, the
// fabric is that which serves the most GPUs. A switch with fewer of them than
// others with as many GPUs has its best other HCAs in their place: a rail in
// Ethernet mode, a slower spare. A DPU takes the place of a NIC only if it is as fast,
// and no other of its sort stands beside NICs. Switches of GPUs that left the bus keep
// their rails: see [orphans].
func nextToGPUs(m *machine.Machine, all []*candidate, vendors gpu.Vendors) (fabric []*candidate, near bool) {
	gpus := gpusOf(m, vendors)
	switches := switchesOf(m, gpus, all)
	served := 0
	for _, s := range switches {
		served += s.gpus
	}
	if served == 0 || 2*served < len(gpus) {
		return nil, false
	}
	usual := usualSort(switches)
	isUsual := func(c *candidate) bool { return c.sort == usual.sort }
	rails := usualRails(switches, isUsual)
	beside := map[sort]bool{} // The sorts that switches with all their rails have too.
	for _, s := range switches {
		for _, c := range s.hcas {
			beside[c.sort] = beside[c.sort] || countOf(s.hcas, isUsual) >= rails[s.gpus]
		}
	}
	for _, s := range switches {
		var spares []*candidate
		for _, c := range s.hcas {
			rail := c.infiniBand == usual.infiniBand && c.gbps >= usual.gbps && !beside[c.sort]
			switch {
			case isUsual(c):
				fabric = append(fabric, c)
			case usual.isDPU() || !c.isDPU() || rail:
				spares = append(spares, c)
			}
		}
		slices.SortStableFunc(spares, better)
		missing := rails[s.gpus] - countOf(s.hcas, isUsual)
		fabric = append(fabric, spares[:max(0, min(missing, len(spares)))]...)
	}
	return append(fabric, orphans(m, switches, len(gpus), all, isUsual, rails)...), true
}

func countOf(hcas []*candidate, is func(*candidate) bool) (n int) {
	for _, c := range hcas {
		if is(c) {
			n++
		}
	}
	return n
}

// orphans returns the HCAs of the usual sort in switches whose GPUs have left the bus, as after
// XID 79: such a switch is at the same place below its root as the others, with as many of them. Machines
// have 2, 4, 8 or 16 GPUs: where more would be missing up to the next such number, the HCAs have
// another purpose.
func orphans(
	m *machine.Machine, switches []*pcieSwitch, gpus int, all []*candidate,
	isUsual func(*candidate) bool, rails map[int]int,
) (found []*candidate) {
	functions := byAddress(m.PCI)
	places := usualPlaces(switches, functions, isUsual)
	perSwitch, usualGPUs := map[int]int{}, 0
	for _, s := range switches {
		if perSwitch[s.gpus]++; perSwitch[s.gpus] > perSwitch[usualGPUs] {
			usualGPUs = s.gpus
		}
	}
	alone := map[bridge][]*candidate{}
	for _, c := range all {
		served := func(s *pcieSwitch) bool { return slices.Contains(s.hcas, c) }
		if !isUsual(c) || slices.ContainsFunc(switches, served) {
			continue
		}
		for at, up := range c.bridges(functions) {
			if places[at] {
				alone[up] = append(alone[up], c)
			}
		}
	}
	missing := 0
	for _, hcas := range alone {
		if len(hcas) == rails[usualGPUs] {
			found = append(found, hcas...)
			missing += usualGPUs
		}
	}
	if gpus+missing > 1<<bits.Len(uint(gpus-1)) {
		return nil
	}
	return found
}

// usualPlaces returns where switches with GPUs are on the way to their HCAs of the usual sort.
func usualPlaces(
	switches []*pcieSwitch, functions map[string]*machine.PCIFunction, isUsual func(*candidate) bool,
) map[position]bool {
	places := map[position]bool{}
	for _, s := range switches {
		for _, c := range s.hcas {
			for at, up := range c.bridges(functions) {
				if isUsual(c) && at.level == s.level && up == s.bridge {
					places[at] = true
				}
			}
		}
	}
	return places
}

// position is where a bridge is among those between a function and its root.
type position struct{ level, depth int }

// bridges returns the bridges above the functions of an HCA.
func (c *candidate) bridges(byAddress map[string]*machine.PCIFunction) iter.Seq2[position, bridge] {
	return func(yield func(position, bridge) bool) {
		for _, f := range c.functions(byAddress) {
			for level, up := range f.Upstream {
				if !yield(position{level, len(f.Upstream)}, bridge{f.Root, up}) {
					return
				}
			}
		}
	}
}

// functions returns the PCI functions of an HCA: its own, and the one that reaches the GPU's memory.
func (c *candidate) functions(byAddress map[string]*machine.PCIFunction) (all []*machine.PCIFunction) {
	for _, address := range []string{c.hca.PCI, c.hca.DataDirect} {
		if f := byAddress[address]; f != nil {
			all = append(all, f)
		}
	}
	return all
}

// bridge is a PCI bridge, below one root.
type bridge struct{ root, address string }

// underBridges returns the HCAs below every bridge.
func underBridges(m *machine.Machine, all []*candidate) map[bridge][]*candidate {
	functions := byAddress(m.PCI)
	under := map[bridge][]*candidate{}
	for _, c := range all {
		for _, at := range c.bridges(functions) {
			if n := len(under[at]); n == 0 || under[at][n-1] != c {
				under[at] = append(under[at], c)
			}
		}
	}
	return under
}

// switchesOf finds for every GPU the deepest bridge under which there is an HCA:
// behind one root port there can be many switches.
func switchesOf(m *machine.Machine, gpus []*machine.PCIFunction, all []*candidate) []*pcieSwitch {
	under := underBridges(m, all)
	byBridge := map[bridge]*pcieSwitch{}
	var switches []*pcieSwitch
	for _, g := range gpus {
		for level, up := range slices.Backward(g.Upstream) {
			at := bridge{g.Root, up}
			if len(under[at]) == 0 {
				continue
			}
			if byBridge[at] == nil {
				byBridge[at] = &pcieSwitch{bridge: at, level: level, hcas: under[at]}
				switches = append(switches, byBridge[at])
			}
			byBridge[at].gpus++
			break
		}
	}
	return switches
}

// usualSort returns an HCA of the sort that serves the most GPUs; of equals the better.
func usualSort(switches []*pcieSwitch) *candidate {
	served := map[sort]int{}
	best := map[sort]*candidate{}
	var order []sort
	for _, s := range switches {
		counted := map[sort]bool{}
		for _, c := range s.hcas {
			switch {
			case best[c.sort] == nil:
				best[c.sort] = c
				order = append(order, c.sort)
			case better(c, best[c.sort]) < 0:
				best[c.sort] = c
			}
			if !counted[c.sort] {
				counted[c.sort] = true
				served[c.sort] += s.gpus
			}
		}
	}
	return best[slices.MinFunc(order, func(a, b sort) int {
		if served[a] != served[b] {
			return served[b] - served[a]
		}
		return better(best[a], best[b])
	})]
}

// usualRails returns how many HCAs of the usual sort most switches have, by their
// number of GPUs; the larger number of equals, and at least 1.
func usualRails(switches []*pcieSwitch, isUsual func(*candidate) bool) map[int]int {
	counts := map[int]map[int]int{}
	for _, s := range switches {
		if counts[s.gpus] == nil {
			counts[s.gpus] = map[int]int{}
		}
		counts[s.gpus][countOf(s.hcas, isUsual)]++
	}
	usual := map[int]int{}
	for gpus, of := range counts {
		usual[gpus] = max(models.Mode(of), 1)
	}
	return usual
}

// gpusOf goes by the bus, so that roles stay when a driver does not answer: GPUs
// of the vendors that heddle reads, and if there are none, processing
// accelerators (class 12) and display controllers without a screen (class 0302,
// 3D, and 0380, other), since VGA is a BMC's.
func gpusOf(m *machine.Machine, vendors gpu.Vendors) []*machine.PCIFunction {
	var known, others []*machine.PCIFunction
	for i := range m.PCI {
		f := &m.PCI[i]
		switch {
		case f.PhysFn != "":
		case vendors.IsGPU(f):
			known = append(known, f)
		case strings.HasPrefix(f.Class, "0x0302"), strings.HasPrefix(f.Class, "0x0380"), strings.HasPrefix(f.Class, "0x12"):
			others = append(others, f)
		}
	}
	if len(known) > 0 {
		return known
	}
	return others
}
