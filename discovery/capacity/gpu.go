package capacity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// gpus counts what is handed out whole: cards and, where the MIG strategy
// names them, MIG devices.
func gpus(m *machine.Machine, c *config.NodeConfig) []Resource {
	whole := tally{name: c.Resources.GPU}
	mixed := map[string]*tally{}
	shared := 0
	for i := range m.GPUs {
		g := &m.GPUs[i]
		switch {
		case c.Shares(g):
			shared++
		case g.MIG.Enabled && c.MIG.Strategy == config.MIGMixed && len(g.MIG.Devices) > 0:
			for _, device := range g.MIG.Devices {
				name := c.Domains.MIGResource(device.Profile)
				if mixed[name] == nil {
					mixed[name] = &tally{name: name}
				}
				mixed[name].add(device.UUID, condition(g), 1)
			}
		case g.MIG.Enabled && c.MIG.Strategy == config.MIGSingle && len(g.MIG.Devices) > 0:
			for _, device := range g.MIG.Devices {
				whole.add(device.UUID, condition(g), 1)
			}
		default:
			whole.add(g.UUID, unfit(g), 1)
		}
	}
	first := whole.resource()
	switch {
	case first.Devices > 0:
	case len(mixed) > 0:
		first.Reason = "every GPU is shared or cut into MIG devices"
	case shared > 0:
		first.Reason = "every GPU is shared: mode is sgpu"
	default:
		first.Reason = noGPUs(m)
	}
	out := []Resource{first}
	for _, name := range slices.Sorted(maps.Keys(mixed)) {
		out = append(out, mixed[name].resource())
	}
	return out
}

// shares counts slots, percent of compute and GiB of memory of shared cards.
func shares(m *machine.Machine, c *config.NodeConfig) []Resource {
	slots := tally{name: c.Resources.SGPU}
	cores := tally{name: c.Resources.VCore}
	memory := tally{name: c.Resources.VMemory}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if !c.Shares(g) {
			continue
		}
		slots.add(g.UUID, unfit(g), int64(c.SGPU.SlotsPerGPU))
		cores.add(g.UUID, unfit(g), 100)
		// A request is for one card, so each card's memory is rounded by itself.
		memory.add(g.UUID, cmp.Or(unfit(g), memoryFault(g)), g.MemoryMiB/1024)
	}
	var strangers []string
	for _, card := range c.SGPU.GPUs {
		if !slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool { return card.Names(&g) }) {
			strangers = append(strangers, string(card))
		}
	}
	out := []Resource{slots.resource()}
	if !c.SGPU.AdvertisesShares() {
		reason := "sgpu.advertise is sgpu"
		if c.SGPU.Advertise == config.AdvertiseAuto {
			reason = "sgpu.hami.enabled leaves them to HAMi's scheduler"
		}
		for _, name := range []string{c.Resources.VCore, c.Resources.VMemory} {
			out = append(out, Resource{Name: name, Reason: reason})
		}
	} else {
		out = append(out, cores.resource(), memory.resource())
	}
	for i := range out {
		switch {
		case len(strangers) > 0:
			stranger := "sgpu.gpus names what this node does not have: " + strings.Join(strangers, ", ")
			out[i].Reason = strings.Trim(stranger+"; "+out[i].Reason, "; ")
		case out[i].Devices == 0 && out[i].Reason == "":
			out[i].Reason = noGPUs(m)
		}
	}
	return out
}

func memoryFault(g *machine.GPU) string {
	if g.MemoryMiB < 1024 {
		return fmt.Sprintf("its memory of %d MiB is not one GiB", g.MemoryMiB)
	}
	return ""
}

// condition tells why a GPU cannot be used at all.
func condition(g *machine.GPU) string {
	switch {
	case g.Health.State == machine.Healthy:
		return ""
	case g.Health.Reason == "":
		return string(g.Health.State)
	}
	return string(g.Health.State) + ": " + g.Health.Reason
}

// unfit tells why a GPU cannot be handed out as a card.
func unfit(g *machine.GPU) string {
	if reason := condition(g); reason != "" || !g.MIG.Enabled {
		return reason
	}
	if len(g.MIG.Devices) == 0 {
		return "MIG is on, and there are no MIG devices"
	}
	return "MIG is on, and it is no card by mig.strategy"
}

// noGPUs tells why a machine has no GPU that the driver knows.
func noGPUs(m *machine.Machine) string {
	reason := probe(m, "nvml")
	on, given := OnBus(m)
	switch {
	case on > 0:
		return counted(on) + " on the PCI bus, but " + cmp.Or(reason, "the driver shows no GPU")
	case given > 0:
		return counted(given) + " bound to vfio-pci, for virtual machines"
	}
	return cmp.Or(reason, "there are no GPUs")
}

func counted(gpus int) string {
	if gpus == 1 {
		return "1 NVIDIA GPU"
	}
	return strconv.Itoa(gpus) + " NVIDIA GPUs"
}

// OnBus counts the NVIDIA GPUs on the PCI bus, by class 03, display
// controller: those that the GPU driver could have, and those that are given
// to virtual machines.
func OnBus(m *machine.Machine) (on, given int) {
	for i := range m.PCI {
		f := &m.PCI[i]
		switch {
		case f.Vendor != "0x10de" || !strings.HasPrefix(f.Class, "0x03"):
		case f.Driver == "vfio-pci":
			given++
		default:
			on++
		}
	}
	return on, given
}

// probe is what a reader complained about; empty if nothing.
func probe(m *machine.Machine, name string) string {
	for i := range m.Probes {
		p := &m.Probes[i]
		switch {
		case p.Name != name || p.State == machine.ProbeOK:
		case p.State == machine.ProbeAbsent && p.Reason != "":
			return p.Reason
		case p.State == machine.ProbeTimeout:
			return strings.TrimSuffix(name+" did not answer: "+p.Reason, ": ")
		default:
			return strings.TrimSuffix(fmt.Sprintf("%s %s: %s", name, p.State, p.Reason), ": ")
		}
	}
	return ""
}
