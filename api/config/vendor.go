package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// For returns the configuration with the names that it has on a machine: where
// domains.vendor is auto, those of the maker of most of its GPUs, with the others'
// beside it. c is complete.
func (c NodeConfig) For(m *machine.Machine) NodeConfig {
	most := c.ForVendor(served(m, ""))
	present := map[string]int{}
	onBus(m, present) // A driver may be away for a while.
	for i := range m.GPUs {
		present[vendorOf(&m.GPUs[i])]++
	}
	for _, other := range c.Each() {
		// Under one name a pod never gets GPUs of two makers.
		if present[other.Domains.Vendor] > 0 && other.Resources.GPU != most.Resources.GPU {
			other.Mode, other.Claims.GPUs = ModeNative, nil
			most.Others = append(most.Others, other)
		}
	}
	return most
}

// ForLabels is For without a machine, by the labels of the Node.
func (c NodeConfig) ForLabels(labels map[string]string) NodeConfig {
	best := wellknown.DefaultDomains().Vendor
	for _, vendor := range wellknown.Vendors() {
		d := c.Domains
		if d.Vendor = vendor.Domain; labels[d.Product()] != "" {
			best = vendor.Domain
		}
	}
	return c.ForVendor(best)
}

// ForVendor is For on a node with GPUs of the maker with this domain.
func (c NodeConfig) ForVendor(vendor string) NodeConfig {
	if c.Domains.Vendor != wellknown.VendorAuto {
		return c
	}
	c.Domains.Vendor = vendor
	r := &c.Resources
	for _, name := range []*string{&r.GPU, &r.SGPU, &r.VCore, &r.VMemory, &r.VMemoryPercentage} {
		if own, derived := strings.CutPrefix(*name, wellknown.VendorAuto+"/"); derived {
			*name = c.Domains.VendorKey(own)
		}
	}
	return c
}

// FixVendor takes the vendor from the names of resources unless domains.vendor is written: shares that are called
// nvidia.com/gpu, as HAMi calls them, are NVIDIA's.
func (c *NodeConfig) FixVendor(written bool) {
	if written {
		return
	}
	r := &c.Resources
	for _, name := range []string{r.GPU, r.SGPU, r.VCore, r.VMemory, r.VMemoryPercentage} {
		for _, vendor := range wellknown.Vendors() {
			if strings.HasPrefix(name, vendor.Domain+"/") {
				c.Domains.Vendor = vendor.Domain
				return
			}
		}
	}
}

// Each is c under the names of every maker that it can have.
func (c *NodeConfig) Each() []*NodeConfig {
	if c.Domains.Vendor != wellknown.VendorAuto {
		return []*NodeConfig{c}
	}
	var all []*NodeConfig
	for _, vendor := range wellknown.Vendors() {
		all = append(all, new(c.ForVendor(vendor.Domain)))
	}
	return all
}

// Serving returns the machine with the GPUs that are allocated: those of the maker with
// this domain, or under another name of the one that has most, and of Others, without
// the excluded ones. Under a name of one maker a pod never gets another's GPU. A GPU that
// reports no memory has the configured amount. It is m itself if nothing differs.
func (c *NodeConfig) Serving(m *machine.Machine) *machine.Machine {
	m = with(m, func(g machine.GPU) bool { return c.NotServed(m, &g) == "" })
	if c.SGPU.MemoryMiB == 0 || !slices.ContainsFunc(m.GPUs, reportsNoMemory) {
		return m
	}
	known := *m
	known.GPUs = slices.Clone(m.GPUs)
	for i := range known.GPUs {
		if reportsNoMemory(known.GPUs[i]) {
			known.GPUs[i].MemoryMiB = c.SGPU.MemoryMiB
		}
	}
	return &known
}

func reportsNoMemory(g machine.GPU) bool { return g.MemoryMiB == 0 && g.Health.State != machine.Lost }

// Own is Serving without Others.
func (c *NodeConfig) Own(m *machine.Machine) *machine.Machine {
	vendor := served(m, c.Domains.Vendor)
	return with(m, func(g machine.GPU) bool { return vendorOf(&g) == vendor })
}

// with returns the machine with some of its GPUs; m itself with all.
func with(m *machine.Machine, keep func(machine.GPU) bool) *machine.Machine {
	drop := func(g machine.GPU) bool { return !keep(g) }
	if !slices.ContainsFunc(m.GPUs, drop) {
		return m
	}
	own := *m
	own.GPUs = slices.DeleteFunc(slices.Clone(m.GPUs), drop)
	return &own
}

// of returns the configuration under the names of a GPU's maker.
func (c *NodeConfig) of(g *machine.GPU) *NodeConfig {
	for _, other := range c.Others {
		if other.Domains.Vendor == vendorOf(g) {
			return other
		}
	}
	return c
}

// GPUResource returns the resource of an exclusive GPU.
func (c *NodeConfig) GPUResource(g *machine.GPU) string { return c.of(g).Resources.GPU }

// NotServed returns why no resource has a GPU of the machine; empty for all others.
func (c *NodeConfig) NotServed(m *machine.Machine, g *machine.GPU) string {
	if vendor := served(m, c.Domains.Vendor); vendorOf(g) != vendor && c.of(g) == c {
		return fmt.Sprintf("it is a GPU of %s, and this node serves those of %s", vendorOf(g), vendor)
	}
	return c.GPUs.excludes(m, g)
}

// WithoutExcluded returns the machine without the excluded GPUs; m itself if there are none.
func (c *NodeConfig) WithoutExcluded(m *machine.Machine) *machine.Machine {
	return with(m, func(g machine.GPU) bool { return c.GPUs.excludes(m, &g) == "" })
}

// excludes returns why a GPU is excluded; empty for others.
func (c *GPUs) excludes(m *machine.Machine, g *machine.GPU) string {
	for _, e := range c.Exclude {
		if e == ExcludeDisplay && display(m, g) || e.Match(g.UUID) || g.PCI != "" && e.Match(g.PCI) || e.Match(g.Product) {
			return fmt.Sprintf("gpus.exclude has %s", e)
		}
	}
	return ""
}

// ExcludeDisplay stands in [GPUs] Exclude for the GPUs that drive a screen.
const ExcludeDisplay Glob = "display"

// display reports whether a GPU is for a screen. NVIDIA's library passes over the first product too
// (go-nvlib, pkg/nvlib/device/api.go); workstations have a small GPU with a screen beside those for compute.
func display(m *machine.Machine, g *machine.GPU) bool {
	class := func(g *machine.GPU, prefix string) bool {
		f := m.Function(g.PCI)
		return f != nil && strings.HasPrefix(f.Class, prefix)
	}
	return g.Product == "NVIDIA DGX Display" || class(g, "0x0300") && g.MemoryMiB > 0 &&
		slices.ContainsFunc(m.GPUs, func(other machine.GPU) bool {
			return vendorOf(&other) == vendorOf(g) && class(&other, "0x0302") && 4*g.MemoryMiB < other.MemoryMiB
		})
}

func vendorOf(g *machine.GPU) string {
	if g.Vendor == "" {
		return wellknown.DefaultDomains().Vendor
	}
	return g.Vendor
}

// served returns the domain of the maker of the GPUs that are allocated: wanted if the
// machine has one of it, and NVIDIA's where that name is wanted, which is the default:
// a node with a graphics unit alone offers nothing by it. Else it is the domain of most GPUs, or of most on the bus
// where no driver shows any. Ties are in the order of preference.
func served(m *machine.Machine, wanted string) string {
	count := map[string]int{}
	for i := range m.GPUs {
		count[vendorOf(&m.GPUs[i])]++
	}
	if len(m.GPUs) == 0 {
		onBus(m, count)
	}
	if count[wanted] > 0 || wanted == wellknown.DefaultDomains().Vendor {
		return wanted
	}
	best := wellknown.DefaultDomains().Vendor
	for _, vendor := range slices.Sorted(maps.Keys(count)) {
		if count[vendor] > count[best] {
			best = vendor
		}
	}
	return best
}

// onBus counts display controllers (class 03) and accelerators (12) by maker.
func onBus(m *machine.Machine, count map[string]int) {
	for i := range m.PCI {
		f := &m.PCI[i]
		if !strings.HasPrefix(f.Class, "0x03") && !strings.HasPrefix(f.Class, "0x12") {
			continue
		}
		for _, vendor := range wellknown.Vendors() {
			if vendor.PCI == f.Vendor {
				count[vendor.Domain]++
			}
		}
	}
}

// InstanceResource returns the resource of an instance of a GPU, empty where instances
// have none and the GPU is exclusive. A GPU that another maker's mode cuts
// has no whole: under strategy none its partitions have the name of GPUs.
func (c *NodeConfig) InstanceResource(g *machine.GPU, profile string) string {
	c = c.of(g)
	cut := g.MIG.Mode != ""
	switch {
	case !g.MIG.Enabled || c.MIGStrategy == MIGNone && !cut:
		return ""
	case c.MIGStrategy != MIGMixed:
		return c.Resources.GPU
	case cut:
		return c.Domains.VendorKey(profile)
	}
	return c.Domains.MIGResource(profile)
}
