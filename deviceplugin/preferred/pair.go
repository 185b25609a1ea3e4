package preferred

import (
	"slices"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// The rungs of the ways without NVLink, in MB/s. Their order is the order of [affinity.Kind], and
// all are below one NVLink of the first generation (20 GB/s), so that any NVLink beats any of them;
// their sizes are the parts of 25 GB/s that PCIe 4.0 x16 leaves over switches, host bridges and
// sockets.
const (
	rungPIX  = 16_000
	rungPXB  = 14_000
	rungPHB  = 12_000
	rungNODE = 10_000
	// rungNear is between NUMA nodes of one socket.
	rungNear = 8_000
	rungSYS  = 6_000
)

// linkMBps is the assumed bandwidth of one NVLink of unknown speed, in one direction: NVLink 2 to 4
// have 25 GB/s (https://www.nvidia.com/en-us/data-center/nvlink/).
const linkMBps = 25_000

// maxPair bounds a pair, in MB/s, against machine files that claim what no
// machine has: sums over all pairs must fit 32 bits.
const maxPair = 10_000_000

// farDistance is the least distance in ACPI's SLIT between sockets. Nodes of
// one socket have 11 to 15 (AMD's NPS2 and NPS4, Intel's sub-NUMA clusters),
// other sockets 20 and more.
const farDistance = 20

// pairs computes pair(i, j) for the first n GPUs.
func pairs(m *machine.Machine, n int) []int32 {
	out := make([]int32, n*n)
	paths, places := pathsOf(m)
	for i := range n {
		for j := range i {
			p := bandwidth(&m.GPUs[i], &m.GPUs[j])
			p += rung(m, paths, places[i], places[j])
			out[i*n+j] = int32(min(p, maxPair)) //nolint:gosec // bounded
			out[j*n+i] = out[i*n+j]
		}
	}
	return out
}

// pathsOf returns the matrix of the machine as if it had no NVLinks, and the place
// in it of every GPU.
func pathsOf(m *machine.Machine) (*affinity.Matrix, []int) {
	bare := *m
	bare.HCAs = nil
	bare.GPUs = slices.Clone(m.GPUs)
	for i := range bare.GPUs {
		bare.GPUs[i].NVLinks = nil
	}
	paths := affinity.Of(&bare)
	places := make([]int, len(m.GPUs))
	for place, d := range paths.Devices {
		places[d.Index] = place
	}
	return paths, places
}

// rung returns the score of the way through PCIe and the processors.
func rung(m *machine.Machine, paths *affinity.Matrix, a, b int) int64 {
	kind := paths.At(a, b).Kind
	if kind == affinity.SYS && near(&m.CPU, paths.Devices[a].NUMA, paths.Devices[b].NUMA) {
		return rungNear
	}
	return map[affinity.Kind]int64{
		affinity.PIX: rungPIX, affinity.PXB: rungPXB, affinity.PHB: rungPHB, affinity.NODE: rungNODE, affinity.SYS: rungSYS,
	}[kind]
}

// near reports whether two NUMA nodes are parts of one socket.
func near(cpu *machine.CPU, a, b *int) bool {
	if a == nil || b == nil {
		return false
	}
	from := slices.IndexFunc(cpu.NUMA, func(n machine.NUMANode) bool { return n.ID == *a })
	to := slices.IndexFunc(cpu.NUMA, func(n machine.NUMANode) bool { return n.ID == *b })
	if from < 0 || to < 0 || to >= len(cpu.NUMA[from].Distances) {
		return false
	}
	distance := cpu.NUMA[from].Distances[to]
	return distance > 0 && distance < farDistance
}

// bandwidth returns the NVLink bandwidth between two GPUs, in MB/s: the direct ones,
// else, if both have links to NVSwitches, as much as the one with less has. Of
// direct links only what both ends report counts.
func bandwidth(a, b *machine.GPU) int64 {
	if direct := min(carried(a, b.PCI), carried(b, a.PCI)); direct > 0 {
		return direct
	}
	return min(carried(a, machine.PeerNVSwitch), carried(b, machine.PeerNVSwitch))
}

func carried(g *machine.GPU, peer string) int64 {
	var sum int64
	for i := range g.NVLinks {
		l := &g.NVLinks[i]
		switch {
		case l.Peer != peer || l.Links <= 0:
		case l.MBps != nil && *l.MBps > 0:
			sum += min(*l.MBps, maxPair)
		default:
			sum += min(int64(l.Links), maxPair/linkMBps) * linkMBps
		}
	}
	return sum
}

// rails are, for each of the first n GPUs, the rails of the fabric HCAs with a
// working port that are next to it: nearest of all fabric HCAs, and at least
// below the same host bridge. Over NODE and SYS nothing is aligned, and the
// device state reports that in an Event.
func rails(m *machine.Machine, n int) []uint64 {
	out := make([]uint64, n)
	matrix, numbers := affinity.Of(m), affinity.Rails(m)
	working := func(d affinity.Device) bool {
		return !d.GPU && numbers[d.Index] >= 0 && numbers[d.Index] < 64 && slices.ContainsFunc(
			m.HCAs[d.Index].Ports, func(p machine.Port) bool { return p.State == machine.PortActive })
	}
	for place, d := range matrix.Devices {
		if !d.GPU || d.Index >= n {
			continue
		}
		nearest, class := matrix.Nearest(place, working)
		if class.Kind < affinity.PHB {
			continue
		}
		for _, hca := range nearest {
			out[d.Index] |= 1 << numbers[matrix.Devices[hca].Index]
		}
	}
	return out
}
