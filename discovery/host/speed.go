package host

import (
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// setSpeeds gives every candidate the best rate that a port of its model has or
// had while it was up, or else what the model can do: a port that is down reads
// its lowest speed.
func setSpeeds(all []*candidate) {
	speeds := map[model]float64{}
	for _, c := range all {
		speeds[c.model] = max(speeds[c.model], c.rate)
	}
	for _, c := range all {
		if c.gbps = speeds[c.model]; c.gbps == 0 {
			c.gbps = nominalGbps(c.hca)
		}
	}
}

// upRate returns the best rate of an HCA's ports that are up, 0 if none is.
func upRate(h *machine.HCA) float64 {
	var best float64
	for _, p := range h.Ports {
		if p.RateGbps != nil && isUp(p) {
			best = max(best, *p.RateGbps)
		}
	}
	return best
}

// nominalGbps returns the highest rate of a model, by PCI vendor and device number
// (pci.ids; data sheets); 0 if unknown.
func nominalGbps(h *machine.HCA) float64 {
	return map[string]float64{
		"0x15b3 0x1003": 56, "0x15b3 0x1007": 56, // ConnectX-3, -3 Pro
		"0x15b3 0x1013": 100, "0x15b3 0x1017": 100, "0x15b3 0x1019": 100, // ConnectX-4, -5, -5 Ex
		"0x15b3 0x1015": 25, "0x15b3 0x101f": 25, // ConnectX-4 Lx, -6 Lx
		"0x15b3 0x101b": 200, "0x15b3 0x101d": 200, "0x15b3 0xa2d6": 200, // ConnectX-6, -6 Dx, BlueField-2
		"0x15b3 0x1021": 400, "0x15b3 0xa2dc": 400, // ConnectX-7, BlueField-3
		"0x15b3 0x1023": 800, // ConnectX-8
		"0x14e4 0x16d7": 25,  // BCM57414
		"0x14e4 0x1750": 200, // BCM57508 (Thor)
		"0x14e4 0x1760": 400, // BCM57608 (Thor 2)
		"0x8086 0x1592": 100, // E810-C
		"0x8086 0x159b": 25,  // E810-XXV
	}[h.Vendor+" "+h.Device]
}

// isDPU: BlueFields are 0xa2d2, 0xa2d6, 0xa2dc and 0xa2df (pci.ids). As SuperNICs they
// are rails like any NIC, and as DPUs they carry storage at the same speed.
func (c *candidate) isDPU() bool {
	return c.vendor == sysfs.VendorMellanox && strings.HasPrefix(c.device, "0xa2d")
}
