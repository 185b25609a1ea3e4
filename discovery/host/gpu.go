package host

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
)

const vendorNVIDIA = "0x10de"

// readGPUs asks NVML, and the bus about what NVML does not know. A GPU that
// was known and no longer answers, or whose driver went away, keeps its
// identity and is Lost as long as the bus has it; one that never told its UUID
// has no identity and is skipped.
func (h *Host) readGPUs(ctx context.Context, m *machine.Machine) {
	bus := nvidiaGPUs(m.PCI)
	if h.memory.bus != nil && !slices.Equal(bus, h.memory.bus) {
		h.gpus.Reopen()
	}
	h.memory.bus = bus
	found := h.gpus.Read(ctx)
	m.Driver = found.Driver
	m.Probes = append(m.Probes, found.Probe)
	m.Skipped = append(m.Skipped, found.Skipped...)
	virtual := h.readVGPUs(ctx, m, found.GPUs)
	answered := map[string]bool{}
	for _, g := range found.GPUs {
		answered[g.PCI] = true
		if g.VGPU != nil {
			g.VGPU = cmp.Or(virtual[g.PCI], g.VGPU)
		}
		m.GPUs = append(m.GPUs, g)
		g.Health = machine.Health{}
		h.memory.gpus[g.PCI] = g
	}
	for _, address := range bus {
		if answered[address] {
			continue
		}
		reason := "on the PCI bus and unknown to NVML"
		if found.Probe.State != machine.ProbeOK {
			reason = found.Probe.Reason
		}
		g, known := h.memory.gpus[address]
		if !known {
			m.Skipped = append(m.Skipped, machine.Skipped{Name: address, Reason: "GPU: " + reason})
			continue
		}
		g.Health = machine.Health{State: machine.Lost, Reason: reason}
		m.GPUs = append(m.GPUs, g)
	}
	h.forget(m.GPUs)
}

// forget drops the identities of GPUs that left the bus: somebody took them.
func (h *Host) forget(gpus []machine.GPU) {
	for address := range h.memory.gpus {
		if !slices.ContainsFunc(gpus, func(g machine.GPU) bool { return g.PCI == address }) {
			delete(h.memory.gpus, address)
		}
	}
}

// vgpus is what the host's vGPU manager tells the guest, by PCI address.
type vgpus struct {
	found   map[string]*machine.VGPU
	skipped []machine.Skipped
}

// readVGPUs reads the configuration space of the GPUs that are virtual.
func (h *Host) readVGPUs(ctx context.Context, m *machine.Machine, gpus []machine.GPU) map[string]*machine.VGPU {
	var of []string
	for i := range gpus {
		if gpus[i].VGPU != nil {
			of = append(of, gpus[i].PCI)
		}
	}
	if len(of) == 0 {
		return nil
	}
	all, err := h.memory.vgpus.Read(ctx, h.options.Timeout, func() (vgpus, error) {
		v := vgpus{found: map[string]*machine.VGPU{}}
		for _, address := range of {
			one, err := h.tree.VGPU(address)
			if err != nil {
				v.skipped = append(v.skipped, machine.Skipped{Name: address, Reason: "vGPU: " + err.Error()})
			}
			v.found[address] = one
		}
		return v, nil
	})
	m.Skipped = append(m.Skipped, all.skipped...)
	if err != nil {
		m.Skipped = append(m.Skipped, machine.Skipped{Name: "vGPU", Reason: bounded.Reason(h.options.Timeout, err)})
	}
	return all.found
}

// nvidiaGPUs are the addresses of the bus' NVIDIA display functions that a GPU
// driver could have. vfio-pci means that the GPU was given to a guest.
func nvidiaGPUs(functions []machine.PCIFunction) []string {
	list := []string{}
	for _, f := range functions {
		if f.Vendor == vendorNVIDIA && strings.HasPrefix(f.Class, "0x03") && f.Driver != "vfio-pci" {
			list = append(list, f.Address)
		}
	}
	return list
}
