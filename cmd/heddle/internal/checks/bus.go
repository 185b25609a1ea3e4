package checks

import (
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/host"
)

// adapter is a network adapter with RDMA, or something like it, by a driver that is
// not the kernel's.
type adapter struct {
	vendor  string
	devices []string
	name    string
	remedy  string
}

func adapters() []adapter {
	return []adapter{
		// pci.ids, "Cray Inc"; drivers/net/ethernet/hpe/ss1 of HPE's shs-cxi-driver.
		{
			"0x17db",
			[]string{"0x0501"},
			"HPE Slingshot adapter (Cassini)",
			"The kernel has no HCA for it: libfabric reaches it by its driver's /dev/cxiN (provider cxi), which another " +
				"plugin must allocate.",
		},
		// drivers/infiniband/hw/efa/efa_main.c
		{
			"0x1d0f",
			[]string{"0xefa0", "0xefa1", "0xefa2", "0xefa3"},
			"AWS Elastic Fabric Adapter (EFA)",
			"modprobe efa makes an RDMA device of it.",
		},
		// drivers/infiniband/hw/erdma/erdma_main.c
		{"0x1ded", []string{"0x107f"}, "Alibaba eRDMA adapter", "modprobe erdma makes an RDMA device of it."},
	}
}

// accelerators explains GPUs and other accelerators on the bus that heddle has no
// reader for: 3D controllers (class 0302), other display controllers (0380) and
// processing accelerators (12).
func (l *List) accelerators(m *machine.Machine) {
	at := map[string][]string{}
	for i := range m.PCI {
		f := &m.PCI[i]
		isAccelerator := slices.ContainsFunc([]string{"0x0302", "0x0380", "0x12"}, func(class string) bool {
			return strings.HasPrefix(f.Class, class)
		})
		if isAccelerator && !host.Vendors().IsGPU(f) && f.PhysFn == "" {
			kind := strings.TrimPrefix(f.Vendor, "0x") + ":" + strings.TrimPrefix(f.Device, "0x")
			at[kind] = append(at[kind], f.Address)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(at)) {
		l.Note(strings.Join(at[kind], ", "), "",
			"accelerators (PCI %s) that heddle has no reader for: no resource has them", kind)
	}
}

// adapters explains adapters on the bus without an HCA, which no resource has.
func (l *List) adapters(m *machine.Machine) {
	for _, a := range adapters() {
		var at []string
		for i := range m.PCI {
			f := &m.PCI[i]
			isHCA := slices.ContainsFunc(m.HCAs, func(h machine.HCA) bool { return h.PCI == f.Address })
			if f.Vendor == a.vendor && slices.Contains(a.devices, f.Device) && !isHCA {
				at = append(at, f.Address)
			}
		}
		if len(at) > 0 {
			l.Note(strings.Join(at, ", "), a.remedy, "%s without an RDMA device: no resource has it", a.name)
		}
	}
}
