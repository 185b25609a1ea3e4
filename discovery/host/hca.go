package host

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// joinHCAs gives every HCA what its PCI function knows, its Data-Direct
// partner and its role.
func (h *Host) joinHCAs(ctx context.Context, m *machine.Machine) {
	vpd := h.readVPD(ctx, m)
	functions := byAddress(m.PCI)
	for i := range m.HCAs {
		hca := &m.HCAs[i]
		if f := functions[hca.PCI]; f != nil {
			hca.Vendor, hca.Device, hca.Driver, hca.PhysFn = f.Vendor, f.Device, f.Driver, f.PhysFn
		}
		hca.DataDirect = dataDirect(m, vpd, hca.PCI)
	}
	h.roles.assign(m, vpd, h.vendors)
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

// vpd is the result of one read of vital product data.
type vpd struct {
	// found is keyed by address, kept by address and device: slow to read, fixed
	// in the adapter.
	found, kept map[string]sysfs.VPD
	skipped     []machine.Skipped
}

// readVPD reads the vital product data that can matter: from Mellanox
// functions with an RDMA device, and of DMA functions. Virtual functions have
// none, and most NICs are complete without.
func (h *Host) readVPD(ctx context.Context, m *machine.Machine) map[string]sysfs.VPD {
	carries := map[string]bool{}
	for i := range m.HCAs {
		carries[m.HCAs[i].PCI] = true
	}
	var of []machine.PCIFunction
	for i := range m.PCI {
		if f := &m.PCI[i]; f.Vendor == sysfs.VendorMellanox && f.PhysFn == "" && (isDMA(f) || carries[f.Address]) {
			of = append(of, *f)
		}
	}
	last, _ := h.vpd.Last()
	data, err := h.vpd.Read(ctx, h.options.Timeout, func() (vpd, error) {
		return h.vpdOf(of, last.kept), nil
	})
	m.Skipped = append(m.Skipped, data.skipped...)
	if err != nil {
		m.Skipped = append(m.Skipped, machine.Skipped{
			Name: "vpd", Reason: "vital product data: " + bounded.Reason(h.options.Timeout, err),
		})
	}
	return data.found
}

// vpdOf reads what is not in kept. What could be read is kept; what could not is
// tried again.
func (h *Host) vpdOf(of []machine.PCIFunction, kept map[string]sysfs.VPD) vpd {
	data := vpd{found: map[string]sysfs.VPD{}, kept: map[string]sysfs.VPD{}}
	forbidden := false
	for i := range of {
		f := &of[i]
		key := f.Address + " " + f.Device
		if v, ok := kept[key]; ok {
			data.kept[key], data.found[f.Address] = v, v
			continue
		}
		v, err := h.tree.VPD(f.Address)
		switch {
		case err == nil:
			data.kept[key] = v
		case errors.Is(err, fs.ErrPermission):
			forbidden = true
		case !sysfs.Unknown(err):
			data.skipped = append(data.skipped, machine.Skipped{Name: f.Address, Reason: err.Error()})
		}
		data.found[f.Address] = v // What was understood before the fault.
	}
	if forbidden {
		data.skipped = append(data.skipped, machine.Skipped{
			Name:   "vpd",
			Reason: "not permitted to read vital product data: NVSwitch functions and Data-Direct partners are unknown",
		})
	}
	return data
}

// isDMA reports whether f is the DMA function of a Data-Direct NIC.
func isDMA(f *machine.PCIFunction) bool {
	return f.Vendor == sysfs.VendorMellanox && f.Device == sysfs.DeviceDataDirect
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
