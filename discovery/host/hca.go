package host

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// joinHCAs gives every HCA what its PCI function knows, its Data-Direct
// partner and its role.
func (h *Host) joinHCAs(m *machine.Machine) {
	vpd := h.readVPD(m)
	functions := byAddress(m.PCI)
	for i := range m.HCAs {
		hca := &m.HCAs[i]
		if f := functions[hca.PCI]; f != nil {
			hca.Vendor, hca.Device, hca.Driver, hca.PhysFn = f.Vendor, f.Device, f.Driver, f.PhysFn
		}
		hca.DataDirect = dataDirect(m, vpd, hca.PCI)
	}
	management := map[string]bool{}
	for address, v := range vpd {
		management[address] = v.SwitchManagement
	}
	assignRoles(m, management)
}

// byAddress finds functions by their address: a machine with virtual functions
// has thousands.
func byAddress(list []machine.PCIFunction) map[string]*machine.PCIFunction {
	functions := make(map[string]*machine.PCIFunction, len(list))
	for i := range list {
		functions[list[i].Address] = &list[i]
	}
	return functions
}

// readVPD reads the vital product data that can matter: that of Mellanox
// functions with an RDMA device, and of DMA functions. Virtual functions have
// none, and most NICs are complete without. What could be read is kept; what
// could not is tried again.
func (h *Host) readVPD(m *machine.Machine) map[string]sysfs.VPD {
	found := map[string]sysfs.VPD{}
	forbidden := false
	kept := map[string]sysfs.VPD{}
	for i := range m.PCI {
		f := &m.PCI[i]
		if f.Vendor != vendorMellanox || f.PhysFn != "" || (!isDMA(f) && !carries(m, f.Address)) {
			continue
		}
		key := f.Address + " " + f.Device
		if v, ok := h.memory.vpd[key]; ok {
			kept[key], found[f.Address] = v, v
			continue
		}
		v, err := h.tree.VPD(f.Address)
		switch {
		case err == nil:
			kept[key] = v
		case errors.Is(err, fs.ErrPermission):
			forbidden = true
		case !sysfs.Unknown(err):
			m.Skipped = append(m.Skipped, machine.Skipped{Name: f.Address, Reason: err.Error()})
		}
		found[f.Address] = v // What was understood before the fault.
	}
	h.memory.vpd = kept
	if forbidden {
		m.Skipped = append(m.Skipped, machine.Skipped{
			Name:   "vpd",
			Reason: "not permitted to read vital product data: NVSwitch functions and Data-Direct partners are unknown",
		})
	}
	return found
}

// isDMA tells whether f is the DMA function of a Data-Direct NIC.
func isDMA(f *machine.PCIFunction) bool {
	return f.Vendor == vendorMellanox && f.Device == sysfs.DeviceDataDirect
}

func carries(m *machine.Machine, address string) bool {
	for i := range m.HCAs {
		if m.HCAs[i].PCI == address {
			return true
		}
	}
	return false
}

// dataDirect finds the DMA function with the same V3 field as the HCA's own
// function. The PCI tree does not join them: the NIC hangs under the CPU, its
// DMA function beside the GPU.
func dataDirect(m *machine.Machine, vpd map[string]sysfs.VPD, address string) string {
	v3 := vpd[address].V3
	if v3 == "" {
		return ""
	}
	partner := ""
	for i := range m.PCI {
		f := &m.PCI[i]
		if isDMA(f) && strings.EqualFold(vpd[f.Address].V3, v3) &&
			(partner == "" || machine.ComparePCI(f.Address, partner) < 0) {
			partner = f.Address
		}
	}
	return partner
}
