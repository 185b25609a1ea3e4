package affinity

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// Device is a row and a column of a [Matrix].
type Device struct {
	// Name is for people: GPU and NVML's index, or the HCA's RDMA name.
	Name string
	// GPU is true for GPUs and false for HCAs; Index is the place in the machine's GPUs or
	// HCAs.
	GPU   bool
	Index int
	// PCI is the function's address; empty for soft RDMA.
	PCI string
	// Role is the HCA's; empty for GPUs.
	Role machine.Role
	// CPUs is the list of processors near the function, NUMA their node; nil
	// if the kernel does not report it.
	CPUs string
	NUMA *int
}

// Matrix holds the class of every pair of a machine's GPUs and HCAs.
type Matrix struct {
	// Devices are the GPUs, then the HCAs, each in the numerical order of PCI
	// addresses; devices without an address come last, by name.
	Devices []Device
	cells   []Class
}

// Of computes the matrix of m. It takes microseconds: no caller needs to keep
// it for speed.
func Of(m *machine.Machine) *Matrix {
	spots, nodes := spotsOf(m), numaNodes(m)
	n := len(spots)
	x := &Matrix{Devices: make([]Device, n), cells: make([]Class, n*n)}
	for i := range spots {
		x.Devices[i] = spots[i].device
		if here := spots[i].here; here != nil {
			x.Devices[i].CPUs, x.Devices[i].NUMA = here.CPUs, here.NUMA
		}
		x.cells[i*n+i] = Class{Kind: Self}
		for j := range i {
			c := between(&spots[i], &spots[j], nodes)
			x.cells[i*n+j], x.cells[j*n+i] = c, c
		}
	}
	return x
}

// spotsOf returns the places of all devices, in the order of a matrix.
func spotsOf(m *machine.Machine) []spot {
	var gpus, hcas []spot
	for i := range m.GPUs {
		g := &m.GPUs[i]
		d := Device{Name: "GPU" + strconv.Itoa(g.Index), GPU: true, Index: i, PCI: g.PCI}
		gpus = append(gpus, spot{device: d, gpu: g, here: m.Function(g.PCI)})
	}
	for i := range m.HCAs {
		hcas = append(hcas, hcaSpot(m, i))
	}
	slices.SortStableFunc(gpus, func(a, b spot) int {
		return cmp.Or(machine.ComparePCI(a.device.PCI, b.device.PCI), strings.Compare(a.gpu.UUID, b.gpu.UUID))
	})
	slices.SortStableFunc(hcas, func(a, b spot) int {
		return cmp.Or(machine.ComparePCI(a.device.PCI, b.device.PCI), machine.CompareNames(a.device.Name, b.device.Name))
	})
	return slices.Concat(gpus, hcas)
}

// At returns the class between the devices at i and j of Devices.
func (x *Matrix) At(i, j int) Class { return x.cells[i*len(x.Devices)+j] }

// Nearest returns, in the order of Devices, those of the devices that among
// accepts and that no other accepted device is closer to than, and their
// class: the best class available, whatever it is. It never returns the device
// itself. If among accepts none, it returns nil.
func (x *Matrix) Nearest(device int, among func(Device) bool) ([]int, Class) {
	var best []int
	var class Class
	for j, d := range x.Devices {
		if j == device || !among(d) {
			continue
		}
		c := x.At(device, j)
		switch order := c.Compare(class); {
		case len(best) == 0 || order > 0:
			best, class = append(best[:0], j), c
		case order == 0:
			best = append(best, j)
		}
	}
	return best, class
}

// IsGPU accepts GPUs, for [Matrix.Nearest].
func IsGPU(d Device) bool { return d.GPU }

// IsFabricHCA accepts the HCAs that carry traffic between GPUs of different
// nodes, for [Matrix.Nearest].
func IsFabricHCA(d Device) bool { return d.Role == machine.RoleFabric }

// RailOrder lists the HCAs, as places in Devices, in the order in which rails
// are numbered: by the GPU next to them, then by PCI address; an HCA that is
// next to no GPU comes after those that are. GPUs of one number talk to each
// other from node to node, each through the HCA next to it (NCCL), so the
// GPU defines which HCAs belong together. Addresses alone give the same order on
// usual machines, and not where firmware numbers buses otherwise. Where others share
// a switch with a GPU, one that does not is placed among the nearest GPUs by its address:
// its GPU may have left the bus, and the numbers of the others must not change.
func (x *Matrix) RailOrder() []int {
	switches := slices.ContainsFunc(x.cells, func(c Class) bool { return c.Kind == PIX || c.Kind == PXB })
	type place struct {
		hca int
		gpu float64
	}
	var all []place
	for i, d := range x.Devices {
		if d.GPU {
			continue
		}
		p := place{i, float64(len(x.Devices))}
		near, class := x.Nearest(i, IsGPU)
		known := class.Kind != Unknown && len(near) > 0
		isAfter := func(gpu int) bool { return machine.ComparePCI(x.Devices[gpu].PCI, d.PCI) > 0 }
		switch at := slices.IndexFunc(near, isAfter); {
		case known && class.Kind == SYS && !switches: // No GPU of its NUMA node is left.
			p.gpu = -1
			if n := len(all); n > 0 {
				p.gpu = all[n-1].gpu
			}
		case known && (class.Kind >= PXB || !switches):
			p.gpu = float64(near[0])
		case known && at >= 0:
			p.gpu = float64(near[at]) - 0.5
		case known:
			p.gpu = float64(near[len(near)-1]) + 0.5
		}
		all = append(all, p)
	}
	// Devices are in the order of PCI addresses, and the sort is stable.
	slices.SortStableFunc(all, func(a, b place) int { return cmp.Compare(a.gpu, b.gpu) })
	out := make([]int, len(all))
	for i, p := range all {
		out[i] = p.hca
	}
	return out
}

// Rails gives every HCA of m, in the order of m.HCAs, its rail, or -1 for
// those that are no fabric HCAs. Rails count from 0 in [Matrix.RailOrder]; a
// virtual function has the rail of its physical one. They are the rails that the
// machine has now: topo/worker, which remembers, leaves a gap for an HCA that
// fell off the bus, and knows which switch each rail leads to.
func Rails(m *machine.Machine) []int {
	byPCI := map[string]int{} // Of physical functions.
	for i := range m.HCAs {
		if h := &m.HCAs[i]; h.Role == machine.RoleFabric && h.PhysFn == "" && h.PCI != "" {
			byPCI[h.PCI] = -1
		}
	}
	x := Of(m)
	rails := slices.Repeat([]int{-1}, len(m.HCAs))
	next := 0
	var virtual []int
	for _, at := range x.RailOrder() {
		i := x.Devices[at].Index
		h := &m.HCAs[i]
		if h.Role != machine.RoleFabric {
			continue
		}
		if _, known := byPCI[h.PhysFn]; known && h.PhysFn != "" {
			virtual = append(virtual, i)
			continue
		}
		rails[i], byPCI[h.PCI] = next, next
		next++
	}
	for _, i := range virtual {
		rails[i] = byPCI[m.HCAs[i].PhysFn]
	}
	return rails
}
