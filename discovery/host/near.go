package host

import (
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// pcieSwitch is the deepest bridge that some GPUs share with HCAs.
type pcieSwitch struct {
	gpus int
	hcas []*candidate
}

// nextToGPUs chooses the fabric from the HCAs next to GPUs. near is false if fewer
// than half of the GPUs share a bridge with one. Of all sorts of HCAs, the
// fabric is that which serves the most GPUs. A switch with fewer of them than
// others with as many GPUs has its best other HCAs in their place: a rail in
// Ethernet mode, a slower spare. A DPU is never a spare of a NIC.
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
	for _, s := range switches {
		var spares []*candidate
		missing := rails[s.gpus]
		for _, c := range s.hcas {
			switch {
			case isUsual(c):
				fabric = append(fabric, c)
				missing--
			case usual.isDPU() || !c.isDPU():
				spares = append(spares, c)
			}
		}
		slices.SortStableFunc(spares, better)
		fabric = append(fabric, spares[:max(0, min(missing, len(spares)))]...)
	}
	return fabric, true
}

// bridge is a PCI bridge, below one root.
type bridge struct{ root, address string }

// underBridges returns the HCAs below every bridge.
func underBridges(m *machine.Machine, all []*candidate) map[bridge][]*candidate {
	functions := byAddress(m.PCI)
	under := map[bridge][]*candidate{}
	for _, c := range all {
		for _, address := range []string{c.hca.PCI, c.hca.DataDirect} {
			f := functions[address]
			if f == nil {
				continue
			}
			for _, up := range f.Upstream {
				at := bridge{f.Root, up}
				if n := len(under[at]); n == 0 || under[at][n-1] != c {
					under[at] = append(under[at], c)
				}
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
		for _, up := range slices.Backward(g.Upstream) {
			at := bridge{g.Root, up}
			if len(under[at]) == 0 {
				continue
			}
			if byBridge[at] == nil {
				byBridge[at] = &pcieSwitch{hcas: under[at]}
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
		n := 0
		for _, c := range s.hcas {
			if isUsual(c) {
				n++
			}
		}
		counts[s.gpus][n]++
	}
	usual := map[int]int{}
	for gpus, of := range counts {
		best := 0
		for n, count := range of {
			if count > of[best] || count == of[best] && n > best {
				best = n
			}
		}
		usual[gpus] = max(best, 1)
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
