package allocate

import (
	"cmp"
	"slices"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// topology is a machine as the choice of HCAs sees it. GPUs and HCAs are named by
// their index in the machine's lists.
type topology struct {
	machine *machine.Machine
	matrix  *affinity.Matrix
	// gpuRow and hcaRow are indices in the matrix, which is in PCI order.
	gpuRow, hcaRow []int
	// rails are the HCAs' rails; gpuRail is the rail that would be a GPU's if
	// GPUs and rails were dealt out in PCI order, -1 without rails.
	rails, gpuRail []int
}

func newTopology(m *machine.Machine) *topology {
	t := &topology{
		machine: m, matrix: affinity.Of(m), rails: affinity.Rails(m),
		gpuRow: make([]int, len(m.GPUs)), hcaRow: make([]int, len(m.HCAs)), gpuRail: make([]int, len(m.GPUs)),
	}
	rails := 0
	for _, rail := range t.rails {
		rails = max(rails, rail+1)
	}
	for row, d := range t.matrix.Devices {
		if !d.GPU {
			t.hcaRow[d.Index] = row
			continue
		}
		// GPUs come first in the matrix: their row is their place among GPUs.
		t.gpuRow[d.Index], t.gpuRail[d.Index] = row, row*rails/len(m.GPUs)
		if rails == 0 {
			t.gpuRail[d.Index] = -1
		}
	}
	return t
}

func (t *topology) class(gpu, hca int) affinity.Class {
	return t.matrix.At(t.gpuRow[gpu], t.hcaRow[hca])
}

// hcaRequest is a choice to make: n HCAs for a container with these GPUs.
type hcaRequest struct {
	n    int
	gpus []int
	// among lists the HCAs to choose from; kept lists the container's current HCAs, which count and
	// are not chosen again.
	among, kept []int
	// nominal are the HCAs that the device IDs name.
	nominal map[int]bool
	// used counts the device IDs of other pods that are bound to an HCA.
	used map[int]int
}

// pick is a chosen HCA and the container's GPU that it is nearest to; GPU is
// -1 and the class Unknown without GPUs.
type pick struct {
	hca, gpu int
	class    affinity.Class
}

// choose picks n distinct HCAs, or all if there are fewer. Each pick is the HCA that brings the
// most GPUs nearer; of equal ones the HCA with the better class to any of the GPUs, then an HCA
// beside the GPU with the fewest picks, on that GPU's rail, named by the device IDs, least used,
// first by PCI address. Pods on different nodes thus get the same rails for the same GPUs, even if
// every class is the same. The answer starts with kept's HCAs and is deterministic.
func (t *topology) choose(w *hcaRequest) []pick {
	c := choice{topology: t, hcaRequest: w, near: make([]affinity.Class, len(w.gpus)), load: make([]int, len(w.gpus))}
	for _, hca := range w.kept {
		c.take(c.rate(hca))
	}
	left := slices.DeleteFunc(slices.Clone(w.among), func(hca int) bool { return slices.Contains(w.kept, hca) })
	for len(c.picks) < w.n && len(left) > 0 {
		best := 0
		offer := c.rate(left[0])
		for i, hca := range left[1:] {
			if o := c.rate(hca); o.compare(&offer) > 0 {
				best, offer = i+1, o
			}
		}
		c.take(offer)
		left = slices.Delete(left, best, best+1)
	}
	return c.picks
}

// choice is a choice under way.
type choice struct {
	*topology
	*hcaRequest
	picks []pick
	// near is the best class that each GPU has so far, load how many picks are
	// beside it. Both are in the order of gpus.
	near []affinity.Class
	load []int
}

// offer is the value of an HCA as the next choice.
type offer struct {
	hca int
	// at is the index in gpus of the nearest one, -1 without GPUs.
	at    int
	class affinity.Class
	// gain sums over the GPUs what the HCA makes better.
	gain    int64
	load    int
	rail    bool
	nominal bool
	used    int
	row     int
}

// compare is positive if o is the better offer.
func (o *offer) compare(p *offer) int {
	return cmp.Or(
		cmp.Compare(o.gain, p.gain), o.class.Compare(p.class), cmp.Compare(p.load, o.load),
		compareBool(o.rail, p.rail), compareBool(o.nominal, p.nominal),
		cmp.Compare(p.used, o.used), cmp.Compare(p.row, o.row),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// weight maps classes to numbers such that 31 of one kind are less than one of the
// next: no machine has 32 GPUs.
func weight(c affinity.Class) int64 { return 1 << (5 * int64(c.Kind)) }

func (c *choice) rate(hca int) offer {
	o := offer{hca: hca, at: -1, nominal: c.nominal[hca], used: c.used[hca], row: c.hcaRow[hca]}
	for i, gpu := range c.gpus {
		class := c.class(gpu, hca)
		o.gain += max(0, weight(class)-weight(c.near[i]))
		rail := c.rails[hca] >= 0 && c.rails[hca] == c.gpuRail[gpu]
		better := o.at < 0
		if !better {
			better = cmp.Or(class.Compare(o.class), compareBool(rail, o.rail), cmp.Compare(o.load, c.load[i])) > 0
		}
		if better {
			o.at, o.class, o.rail, o.load = i, class, rail, c.load[i]
		}
	}
	return o
}

func (c *choice) take(o offer) {
	p := pick{hca: o.hca, gpu: -1, class: o.class}
	if o.at >= 0 {
		p.gpu = c.gpus[o.at]
		c.load[o.at]++
	}
	for i, gpu := range c.gpus {
		if class := c.class(gpu, o.hca); class.Compare(c.near[i]) > 0 {
			c.near[i] = class
		}
	}
	c.picks = append(c.picks, p)
}
