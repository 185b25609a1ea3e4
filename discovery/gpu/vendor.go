// Package gpu is the seam between heddle and the makers of GPUs.
//
// A vendor contributes values ([Vendor]: its PCI numbers, health codes,
// environment variables, label groups) and a [Library] that reads its GPUs. What
// it reports between scans ([Telemetry]) and how containers get its devices
// ([EditsGenerator]) are methods that a library may have. Everything else here
// is the same for all vendors: [Reader] and [Poller] ask a library in bounded
// time, and remember the last good answers of a GPU that hangs.
//
// The package names no vendor. Each has a package below this one,
// and package host lists them.
package gpu

import (
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// Vendor describes one vendor's GPUs. It is never changed.
type Vendor struct {
	// Name is the maker as people write it.
	Name string
	// Domain is the domain of the vendor's label and resource names, the value
	// of domains.vendor on nodes with its GPUs.
	Domain string
	// Probe is the name of the reader in Machine.Probes.
	Probe string
	// Link is the vendor's name of the link between its GPUs.
	Link string
	// PCI finds the vendor's functions on the bus.
	PCI PCI
	// Module is how the names of the vendor's kernel modules and subsystems
	// begin; their events announce a driver that comes or goes.
	Module string
	// Node is how the paths of its GPUs' device nodes begin; a number follows.
	Node string
	// Labels are the groups of labels that the vendor's nodes have beside those
	// of every GPU.
	Labels Labels
	// Remedies are the recommended actions of an administrator.
	Remedies Remedies
	// Codes is the catalog of error reports.
	Codes Catalog
	// Environment is how the vendor's own container runtime is configured.
	Environment Environment
}

// Remedies are sentences for an administrator. Link begins a sentence that goes
// on with the PCI address of the GPU.
type Remedies struct {
	// Driver is for a driver that does not answer, Lost and Unhealthy for GPUs,
	// Fabric for a GPU that is not registered, Link for links that are down.
	Driver, Lost, Unhealthy, Fabric, Link string
}

// PCI is how a vendor's functions are recognized on the PCI bus.
type PCI struct {
	// Vendor is sysfs' word for the vendor: 0x1002.
	Vendor string
	// GPUs and Switches are prefixes of the classes of GPUs and of switches
	// between GPUs that the bus does not show.
	GPUs, Switches []string
}

// Labels are groups of labels in the spelling of gpu-feature-discovery.
type Labels struct {
	// Own are the maker's own labels of GPUs, by their names after the domain and
	// the word; the values are in machine.GPU.Attributes.
	Own []string
	// CUDA are the versions of driver and runtime and the compute capability,
	// MIG the instances, MPS and VGPU whether the node has them.
	CUDA, MIG, MPS, VGPU bool
}

// IsGPU reports whether a function is one of the vendor's GPUs.
func (v *Vendor) IsGPU(f *machine.PCIFunction) bool { return v.PCI.matches(f, v.PCI.GPUs) }

func (p *PCI) matches(f *machine.PCIFunction, classes []string) bool {
	return f.Vendor == p.Vendor && slices.ContainsFunc(classes, func(prefix string) bool {
		return strings.HasPrefix(f.Class, prefix)
	})
}

// Vendors are the vendors that a program supports, in the order of preference.
type Vendors []*Vendor

// IsGPU reports whether a function is a GPU of any vendor.
func (v Vendors) IsGPU(f *machine.PCIFunction) bool {
	return slices.ContainsFunc(v, func(one *Vendor) bool { return one.IsGPU(f) })
}

// IsSwitch reports whether a function is a switch between the GPUs of a vendor.
func (v Vendors) IsSwitch(f *machine.PCIFunction) bool {
	return slices.ContainsFunc(v, func(one *Vendor) bool { return one.PCI.matches(f, one.PCI.Switches) })
}

// Of returns the vendor of a GPU, by its function on the bus; nil if none knows it.
// A machine without a readable bus has GPUs of the first vendor.
func (v Vendors) Of(m *machine.Machine, g *machine.GPU) *Vendor {
	f := m.Function(g.PCI)
	for _, one := range v {
		if f == nil || f.Vendor == "" || one.PCI.Vendor == f.Vendor {
			return one
		}
	}
	return nil
}

// Present returns the vendors of a machine's GPUs, those without a driver too.
func (v Vendors) Present(m *machine.Machine) Vendors {
	return slices.DeleteFunc(slices.Clone(v), func(one *Vendor) bool {
		known := slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool { return v.Of(m, &g) == one })
		return !known && !slices.ContainsFunc(m.PCI, func(f machine.PCIFunction) bool { return one.IsGPU(&f) })
	})
}

// OnBus returns the bus addresses of the vendor's GPUs that its driver should have.
func (v *Vendor) OnBus(functions []machine.PCIFunction) []string {
	var all []string
	for i := range functions {
		if f := &functions[i]; v.IsGPU(f) && Excuse(f) == "" {
			all = append(all, f.Address)
		}
	}
	return all
}

// Excuse returns why a GPU on the bus is not for containers, so that no GPU driver
// need have it: it belongs to virtual machines. Empty for all others.
func Excuse(f *machine.PCIFunction) string {
	switch {
	case f.PassedThrough():
		return "bound to " + f.Driver + ", for virtual machines"
	case f.PhysFn != "":
		return "a virtual function of " + f.PhysFn + ", for virtual machines"
	}
	return ""
}

// Environment is how a vendor's container runtime learns which GPUs a
// container has, where CDI does not name them.
type Environment struct {
	// Visible is the variable that lists devices, by UUID, and None its value
	// for a container with devices by CDI: the runtime then adds nothing.
	Visible, None string
	// Prefix is the prefix of UUIDs in Visible; empty means "GPU-".
	Prefix string
	// GDRCopy and GDS are variables that turn a feature on, Enabled their value.
	// IMEX lists channels, as [Features] has them.
	GDRCopy, GDS, Enabled, IMEX string
}

// Hidden returns the environment of containers with GPUs by CDI.
func (e *Environment) Hidden() map[string]string {
	if e.Visible == "" {
		return nil
	}
	return map[string]string{e.Visible: e.None}
}

// Show returns the environment of containers with GPUs by the vendor's
// runtime.
func (e *Environment) Show(uuids []string, f Features) map[string]string {
	if e.Visible == "" {
		return nil
	}
	visible := strings.Join(uuids, ",")
	if e.Prefix != "" {
		visible = strings.ReplaceAll(visible, "GPU-", e.Prefix)
	}
	env := map[string]string{e.Visible: visible}
	if f.GDRCopy && e.GDRCopy != "" {
		env[e.GDRCopy] = e.Enabled
	}
	if f.GDS && e.GDS != "" {
		env[e.GDS] = e.Enabled
	}
	if f.IMEX != "" && e.IMEX != "" {
		env[e.IMEX] = f.IMEX
	}
	return env
}

// HiddenEnv is [Environment.Hidden] of all vendors, as NAME=value words.
func (v Vendors) HiddenEnv() []string {
	var env []string
	for _, one := range v {
		for name, value := range one.Environment.Hidden() {
			env = append(env, name+"="+value)
		}
	}
	return env
}
