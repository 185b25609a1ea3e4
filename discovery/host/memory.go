package host

import (
	"fmt"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// memory has the findings of earlier scans about roles, so that no role changes
// because a link goes down or a device is lost. It is not durable: the daemons
// of a node scan for themselves, must agree, and have no place for files in
// common. One that starts while links are down goes by nearness, and by what
// the models can do.
type memory struct {
	// rates are the best rates that HCAs had while they were up.
	rates map[string]float64
	// roles is keyed by all that decided on them except whether a link is up now;
	// gpus are the GPUs that were on the bus, with their place.
	roles map[string]machine.Role
	gpus  map[string]bool
}

// assign gives every HCA its role: the role that it had if there is neither a
// new device nor a better rate, else a new one.
func (k *memory) assign(m *machine.Machine, vpd map[string]sysfs.VPD, vendors gpu.Vendors) {
	if k.rates == nil {
		k.rates = map[string]float64{}
	}
	ids, functions := m.HCAIDs(), byAddress(m.PCI)
	seen, keys, known := make([]float64, len(ids)), make([]string, len(ids)), true
	for i := range m.HCAs {
		h := &m.HCAs[i]
		device := strings.Join([]string{ids[i], h.Name, h.Vendor, h.Device, h.Type}, " ")
		k.rates[device] = max(k.rates[device], upRate(h))
		seen[i] = k.rates[device]
		keys[i] = fmt.Sprint(device, seen[i], h.Virtual, h.PhysFn, h.BondSlaves, len(h.CharDevices.UVerbs) > 0,
			vpd[h.PCI].SwitchManagement, place(functions[h.PCI]), place(functions[h.DataDirect]), linkLayers(h))
		_, ok := k.roles[keys[i]]
		known = known && ok
	}
	gpus := map[string]bool{}
	for _, f := range gpusOf(m, vendors) {
		gpus[place(f)] = true
		known = known && k.gpus[place(f)]
	}
	if known {
		for i := range m.HCAs {
			m.HCAs[i].Role = k.roles[keys[i]]
		}
		return
	}
	assignRoles(m, seen, vpd, vendors)
	k.roles, k.gpus = make(map[string]machine.Role, len(keys)), gpus
	for i := range m.HCAs {
		k.roles[keys[i]] = m.HCAs[i].Role
	}
}

// place returns where a function hangs, empty for none.
func place(f *machine.PCIFunction) string {
	if f == nil {
		return ""
	}
	return strings.Join(append([]string{f.Root, f.Address}, f.Upstream...), "/")
}

func linkLayers(h *machine.HCA) (layers []string) {
	for i := range h.Ports {
		layers = append(layers, h.Ports[i].LinkLayer)
	}
	return layers
}
