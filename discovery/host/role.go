package host

import (
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// assignRoles decides what every HCA is for. In order:
//
//  1. Soft RDMA is virtual. A Mellanox function whose vital product data names
//     it the management of an NVSwitch is nvswitch. An RDMA device without
//     verbs, on a function with another one that has them, is management
//     (ConnectX-8's second plane).
//  2. The fabric's kind is InfiniBand if any remaining HCA has an InfiniBand
//     port, else Ethernet of more than 25 Gb/s: slower HCAs are a node's
//     ordinary network, also where there are no others. A bond is never
//     fabric while an HCA that is none could be.
//  3. Of that kind, the fastest HCAs are fabric and the others storage. An
//     HCA is as fast as the fastest port of its model on this node, and if
//     none of them is up, as the model can be: a port that is down reads its
//     lowest speed, and must not lose its role for that.
//  4. If at least half of the GPUs have one of these under their PCIe
//     bridge, those that share a bridge with no GPU are storage: DGX
//     machines have storage HCAs of the fabric's own model.
//  5. Everything else is management up to 25 Gb/s, and storage above.
//
// vpd are vital product data by address.
func assignRoles(m *machine.Machine, vpd map[string]sysfs.VPD, vendors gpu.Vendors) {
	withVerbs := map[string]bool{}
	for i := range m.HCAs {
		if h := &m.HCAs[i]; len(h.CharDevices.UVerbs) > 0 {
			withVerbs[h.PCI] = true
		}
	}
	var candidates []*machine.HCA
	for i := range m.HCAs {
		h := &m.HCAs[i]
		switch {
		case h.Virtual:
			h.Role = machine.RoleVirtual
		case h.Vendor == sysfs.VendorMellanox && vpd[h.PCI].SwitchManagement:
			h.Role = machine.RoleNVSwitch
		case h.PCI != "" && len(h.CharDevices.UVerbs) == 0 && withVerbs[h.PCI]:
			h.Role = machine.RoleManagement
		default:
			candidates = append(candidates, h)
		}
	}
	speeds := modelSpeeds(candidates)
	for _, h := range candidates {
		h.Role = machine.RoleStorage
		if speeds[modelOf(h)] <= managementGbps {
			h.Role = machine.RoleManagement
		}
	}
	for _, h := range nearGPUs(m, fastest(ofFabricKind(candidates, speeds), speeds), vendors) {
		h.Role = machine.RoleFabric
	}
}

// managementGbps is the fastest that is for operators only, in 10^9 bits a
// second.
const managementGbps = 25

// ofFabricKind keeps the HCAs that the fabric could consist of.
func ofFabricKind(all []*machine.HCA, speeds map[model]float64) []*machine.HCA {
	other := func(h *machine.HCA) bool { return speeds[modelOf(h)] <= managementGbps }
	if slices.ContainsFunc(all, isInfiniBand) {
		other = func(h *machine.HCA) bool { return !isInfiniBand(h) }
	}
	kind := slices.DeleteFunc(slices.Clone(all), other)
	if slices.ContainsFunc(kind, func(h *machine.HCA) bool { return !isBond(h) }) {
		kind = slices.DeleteFunc(kind, isBond)
	}
	return kind
}

func isInfiniBand(h *machine.HCA) bool {
	return slices.ContainsFunc(h.Ports, func(p machine.Port) bool { return p.LinkLayer == machine.InfiniBand })
}

func isBond(h *machine.HCA) bool {
	return len(h.BondSlaves) > 0 || strings.Contains(h.Name, "bond")
}

// model is what HCAs of one speed have in common. A virtual function has its
// own device number, a bond its own speed.
type model struct {
	vendor, device, hcaType string
	bond                    bool
}

func modelOf(h *machine.HCA) model {
	return model{h.Vendor, h.Device, h.Type, isBond(h)}
}

// modelSpeeds is the speed of every model on the node, in 10^9 bits a second.
func modelSpeeds(all []*machine.HCA) map[model]float64 {
	speeds := map[model]float64{}
	for _, h := range all {
		key := modelOf(h)
		speeds[key] = max(speeds[key], fastestPort(h, func(p machine.Port) bool { return p.State != machine.PortDown }))
	}
	for _, h := range all {
		key := modelOf(h)
		if speeds[key] == 0 {
			speeds[key] = max(nominalGbps(h), fastestPort(h, func(machine.Port) bool { return true }))
		}
	}
	return speeds
}

func fastestPort(h *machine.HCA, counts func(machine.Port) bool) float64 {
	var best float64
	for _, p := range h.Ports {
		if p.RateGbps != nil && counts(p) {
			best = max(best, *p.RateGbps)
		}
	}
	return best
}

// nominalGbps is what a model can do at most, by PCI device number (pci.ids,
// vendor 15b3; data sheets); 0 if unknown.
func nominalGbps(h *machine.HCA) float64 {
	if h.Vendor != sysfs.VendorMellanox {
		return 0
	}
	return map[string]float64{
		"0x1003": 56, "0x1007": 56, // ConnectX-3, -3 Pro
		"0x1013": 100, "0x1017": 100, "0x1019": 100, // ConnectX-4, -5, -5 Ex
		"0x1015": 25, "0x101f": 25, // ConnectX-4 Lx, -6 Lx
		"0x101b": 200, "0x101d": 200, "0xa2d6": 200, // ConnectX-6, -6 Dx, BlueField-2
		"0x1021": 400, "0xa2dc": 400, // ConnectX-7, BlueField-3
		"0x1023": 800, // ConnectX-8
	}[h.Device]
}

// fastest keeps the HCAs whose model is as fast as any here.
func fastest(all []*machine.HCA, speeds map[model]float64) []*machine.HCA {
	var best float64
	for _, h := range all {
		best = max(best, speeds[modelOf(h)])
	}
	return slices.DeleteFunc(all, func(h *machine.HCA) bool { return speeds[modelOf(h)] < best })
}

// nearGPUs drops the HCAs that share a bridge with no GPU, if at least half of
// the GPUs share one with an HCA. Virtual machines and Grace have no common
// bridges, and keep all.
func nearGPUs(m *machine.Machine, all []*machine.HCA, vendors gpu.Vendors) []*machine.HCA {
	functions := byAddress(m.PCI)
	near := map[*machine.HCA]bool{}
	gpus, served := 0, 0
	for i := range m.PCI {
		f := &m.PCI[i]
		if !isGPU(f, vendors) {
			continue
		}
		gpus++
		found := false
		for _, h := range all {
			if sharesBridge(f, functions[h.PCI]) || sharesBridge(f, functions[h.DataDirect]) {
				near[h], found = true, true
			}
		}
		if found {
			served++
		}
	}
	if gpus == 0 || 2*served < gpus {
		return all
	}
	return slices.DeleteFunc(all, func(h *machine.HCA) bool { return !near[h] })
}

// isGPU goes by the bus, so that roles stay when a driver does not answer: GPUs
// of the vendors that heddle reads, and display controllers without a screen
// (class 0302, 3D, and 0380, other), since VGA is a BMC's.
func isGPU(f *machine.PCIFunction, vendors gpu.Vendors) bool {
	return vendors.IsGPU(f) || strings.HasPrefix(f.Class, "0x0302") || strings.HasPrefix(f.Class, "0x0380")
}

func sharesBridge(a, b *machine.PCIFunction) bool {
	return a != nil && b != nil && a.Root == b.Root && len(a.Upstream) > 0 && len(b.Upstream) > 0 &&
		a.Upstream[0] == b.Upstream[0]
}
