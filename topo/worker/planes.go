package worker

import (
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// smiOf returns the SMI device of an HCA of several planes, nil for any other HCA. A
// ConnectX-8 aggregates its planes into one RDMA device that carries no SMPs;
// the kernel puts them on a device of their own on the same function, with one
// port for each plane and without verbs (RDMA_DEVICE_TYPE_SMI, Linux 6.11).
func smiOf(m *machine.Machine, h *machine.HCA) *machine.HCA {
	i := slices.IndexFunc(m.HCAs, func(o machine.HCA) bool { return isPair(h, &o) })
	if i < 0 {
		return nil
	}
	return &m.HCAs[i]
}

// isSMI reports whether an HCA is another's SMI device: it has no cable of its
// own.
func isSMI(m *machine.Machine, smi *machine.HCA) bool {
	return slices.ContainsFunc(m.HCAs, func(h machine.HCA) bool { return isPair(&h, smi) })
}

func isPair(h, smi *machine.HCA) bool {
	return h.PCI != "" && h.PCI == smi.PCI && len(h.CharDevices.UVerbs) > 0 && len(smi.CharDevices.UVerbs) == 0 &&
		len(h.Ports) > 0 && len(smi.Ports) > 0 && h.Ports[0].LinkLayer == machine.InfiniBand
}

// planes returns the cables of an HCA of several planes: the ports are the SMI
// device's, all else is the HCA's.
func planes(h, smi *machine.HCA) []Port {
	carrier := *h
	carrier.CharDevices = smi.CharDevices
	var all []Port
	for i := range smi.Ports {
		for _, p := range cables(&carrier, &smi.Ports[i]) {
			// The kernel makes a umad for each port, in their order.
			if len(smi.CharDevices.UMAD) == len(smi.Ports) {
				p.UMAD = smi.CharDevices.UMAD[i : i+1]
			}
			p.LinkLayer = h.Ports[0].LinkLayer
			all = append(all, p)
		}
	}
	return all
}

// isVF reports whether an HCA is a virtual function, here or passed through to this virtual
// machine, where only its device ID shows it (drivers/net/ethernet/ mellanox/mlx5/core/main.c: the
// IDs of mlx5's virtual functions are even up to ConnectX-6 Dx, and later models share 0x101e).
func isVF(h *machine.HCA) bool {
	if h.PhysFn != "" {
		return true
	}
	id, err := strconv.ParseUint(strings.TrimPrefix(h.Device, "0x"), 16, 16)
	return h.Vendor == "0x15b3" && err == nil && id >= 0x1012 && id <= 0x101e && id%2 == 0
}
