package main

import (
	"fmt"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// theirs is a machine as go-gpuallocator sees it.
type theirs struct {
	policy  gpuallocator.Policy
	devices gpuallocator.DeviceList
	// points is its pair score, by its own weights.
	points [][]int
}

// newTheirs builds its device list as its NewDevices does from NVML: a link for
// the common ancestor of every pair, and one for all direct NVLinks. Links to
// NVSwitches are not seen: their far end is the switch.
func newTheirs(m *machine.Machine) (*theirs, error) {
	t := &theirs{policy: gpuallocator.NewBestEffortPolicy()}
	for i := range m.GPUs {
		d := &gpuallocator.Device{Index: i, Links: map[int][]gpuallocator.P2PLink{}}
		d.UUID = m.GPUs[i].UUID
		t.devices = append(t.devices, d)
		t.points = append(t.points, make([]int, len(m.GPUs)))
	}
	bare := *m
	bare.HCAs = nil
	bare.GPUs = nil
	for _, g := range m.GPUs {
		g.NVLinks = nil
		bare.GPUs = append(bare.GPUs, g)
	}
	paths := affinity.Of(&bare)
	for a, from := range paths.Devices {
		for b, to := range paths.Devices {
			if a == b {
				continue
			}
			i, j := from.Index, to.Index
			level, err := levelOf(paths.At(a, b).Kind)
			if err != nil {
				return nil, err
			}
			t.link(i, j, level)
			t.points[i][j] += 10 * int(level)
			if n := direct(&m.GPUs[i], m.GPUs[j].PCI); n > 0 {
				t.link(i, j, uint(6+n)) // P2PLinkSameBoard is 6, SingleNVLINKLink 7.
				t.points[i][j] += 100 * n
			}
		}
	}
	return t, nil
}

func (t *theirs) link(i, j int, kind uint) {
	l := gpuallocator.P2PLink{GPU: t.devices[j]}
	set(&l.Type, kind)
	t.devices[i].Links[j] = append(t.devices[i].Links[j], l)
}

// set assigns to a type that has no name outside its module.
func set[T ~uint](to *T, v uint) { *to = T(v) }

// levelOf is links.P2PLinkType of a path.
func levelOf(k affinity.Kind) (uint, error) {
	switch k {
	case affinity.SYS, affinity.Unknown:
		return 1, nil
	case affinity.NODE:
		return 2, nil
	case affinity.PHB:
		return 3, nil
	case affinity.PXB:
		return 4, nil
	case affinity.PIX:
		return 5, nil
	case affinity.NVLink, affinity.Self:
	}
	return 0, fmt.Errorf("no level for kind %d", k)
}

func direct(g *machine.GPU, peer string) int {
	n := 0
	for _, l := range g.NVLinks {
		if l.Peer == peer {
			n += l.Links
		}
	}
	return n
}

// list is a set as a list.
func (t *theirs) list(mask uint64) []*gpuallocator.Device {
	var out []*gpuallocator.Device
	for i, d := range t.devices {
		if mask>>i&1 == 1 {
			out = append(out, d)
		}
	}
	return out
}

func maskOf(devices []*gpuallocator.Device) uint64 {
	mask := uint64(0)
	for _, d := range devices {
		if d != nil {
			mask |= 1 << d.Index
		}
	}
	return mask
}

// score is a set's by go-gpuallocator's weights.
func (t *theirs) score(mask uint64) int {
	total := 0
	for i := range t.points {
		for j := range i {
			if mask>>i&1 == 1 && mask>>j&1 == 1 {
				total += t.points[i][j]
			}
		}
	}
	return total
}
