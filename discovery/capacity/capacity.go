// Package capacity counts which resources a node can offer, how many of each,
// and why there are not more: a pure function of the machine and the node's
// configuration.
//
// Every zero has a reason that a person can act on. The package advertises
// nothing; see deviceplugin.
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
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// Resource is one resource of a node.
type Resource struct {
	// Name is the name in requests of pods: nvidia.com/gpu.
	Name string `json:"name"`
	// Count is how many of it pods can get, were the node empty.
	Count int64 `json:"count"`
	// Devices is how many devices it is made of, and Healthy how many of them
	// can be allocated.
	Devices int `json:"devices"`
	Healthy int `json:"healthy"`
	// Reason is why Count is 0, or why some devices cannot be allocated.
	// Empty if all can.
	Reason string `json:"reason,omitempty"`
}

// Of lists the resources of a machine: GPUs first, then HCAs in the order of
// the configuration. c is complete; see [config.NodeConfig.Complete]. vendors
// are recognized by their GPUs on the bus.
func Of(m *machine.Machine, c *config.NodeConfig, vendors gpu.Vendors) []Resource {
	all := m
	m = c.WithRoles(c.Serving(m))
	resources := gpus(m, c, vendors)
	if c.Mode == config.ModeSGPU {
		resources = append(resources, shares(m, c, vendors)...)
	}
	if len(m.GPUs) == 0 && len(all.GPUs) > 0 {
		for i := range resources {
			resources[i].Reason = "GPU " + all.GPUs[0].PCI + ": " + c.NotServed(all, &all.GPUs[0])
		}
	}
	for i := range c.RDMA.Resources {
		resources = append(resources, hcas(m, &c.RDMA, &c.RDMA.Resources[i]))
	}
	return resources
}

// maxFaults is how many devices a reason names.
const maxFaults = 4

// tally counts the devices of one resource.
type tally struct {
	name             string
	devices, healthy int
	count            int64
	faults           []string
}

// add counts a device that is worth n, unless it is unhealthy for a reason.
func (t *tally) add(device, reason string, n int64) {
	t.devices++
	if reason != "" {
		t.faults = append(t.faults, device+": "+reason)
		return
	}
	t.healthy++
	t.count += n
}

func (t *tally) resource() Resource {
	return Resource{
		Name: t.name, Count: t.count, Devices: t.devices, Healthy: t.healthy, Reason: several(t.faults),
	}
}

// several joins the first faults and counts the others.
func several(faults []string) string {
	if more := len(faults) - maxFaults; more > 1 {
		return fmt.Sprintf("%s; and %d more", strings.Join(faults[:maxFaults], "; "), more)
	}
	return strings.Join(faults, "; ")
}

// gpus counts exclusive devices: GPUs and, where the MIG strategy
// names them, MIG devices.
func gpus(m *machine.Machine, c *config.NodeConfig, vendors gpu.Vendors) []Resource {
	whole := tally{name: c.Resources.GPU}
	mixed := map[string]*tally{} // Of MIG profiles, and of other makers.
	shared, claimable := 0, 0
	named := func(name string) *tally {
		if name == whole.name {
			return &whole
		}
		if mixed[name] == nil {
			mixed[name] = &tally{name: name}
		}
		return mixed[name]
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		switch {
		case c.Shares(g):
			shared++
		case c.Claimable(g):
			claimable++
		case len(g.MIG.Devices) > 0 && c.InstanceResource(g, "") != "":
			for _, device := range g.MIG.Devices {
				named(c.InstanceResource(g, device.Profile)).add(device.UUID, c.Health.Fault(g.Health), 1)
			}
		default:
			named(c.GPUResource(g)).add(g.UUID, Unallocatable(g, c), 1)
		}
	}
	first := whole.resource()
	switch {
	case first.Devices > 0:
	case len(mixed) > 0:
		first.Reason = "every GPU is shared or cut into MIG devices"
		if slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool { return g.MIG.Mode != "" }) {
			first.Reason = "every GPU is shared or cut into partitions"
		}
	case claimable > 0:
		first.Reason = "pods get every GPU by ResourceClaims"
	case shared > 0:
		first.Reason = "every GPU is shared: mode is sgpu"
	default:
		first.Reason = noGPUs(m, vendors)
	}
	out := []Resource{first}
	for _, name := range slices.Sorted(maps.Keys(mixed)) {
		out = append(out, mixed[name].resource())
	}
	return out
}

// shares counts slots, percent of compute and GiB of memory of shared GPUs.
func shares(m *machine.Machine, c *config.NodeConfig, vendors gpu.Vendors) []Resource {
	slots := tally{name: c.Resources.SGPU}
	cores := tally{name: c.Resources.VCore}
	memory := tally{name: c.Resources.VMemory}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if !c.Shares(g) {
			continue
		}
		slots.add(g.UUID, Unallocatable(g, c), int64(c.SGPU.Slots(g)))
		cores.add(g.UUID, Unallocatable(g, c), 100)
		// A request is for one GPU, so each GPU's memory is rounded alone.
		memory.add(g.UUID, cmp.Or(Unallocatable(g, c), memoryFault(g)), c.SGPU.RoomMiB(g.MemoryMiB)/config.GiB.InMiB())
	}
	var missing []string
	for _, ref := range c.SGPU.GPUs {
		if !slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool { return ref.Names(&g) }) {
			missing = append(missing, string(ref))
		}
	}
	out := []Resource{slots.resource()}
	if !c.AdvertisesShares() {
		reason := "sgpu.advertise is sgpu"
		switch {
		case c.SGPU.Advertise == config.AdvertiseSGPU:
		case c.SGPU.HAMi == config.HAMiOn:
			reason = "sgpu.hami leaves them to HAMi's scheduler"
		default:
			reason = "the kubelet cannot count memory in MiB or percent: heddle-scheduler does"
		}
		for _, name := range []string{c.Resources.VCore, c.Resources.VMemory} {
			out = append(out, Resource{Name: name, Reason: reason})
		}
	} else {
		out = append(out, cores.resource(), memory.resource())
	}
	for i := range out {
		switch {
		case len(missing) > 0:
			reason := "sgpu.gpus names what this node does not have: " + strings.Join(missing, ", ")
			out[i].Reason = strings.Trim(reason+"; "+out[i].Reason, "; ")
		case out[i].Devices == 0 && out[i].Reason == "":
			out[i].Reason = noGPUs(m, vendors)
		}
	}
	return out
}

func memoryFault(g *machine.GPU) string {
	switch {
	case g.MemoryMiB == 0:
		return "it reports no memory: sgpu.memoryMiB sets the amount"
	case g.MemoryMiB < 1024:
		return fmt.Sprintf("its memory of %d MiB is not one GiB", g.MemoryMiB)
	}
	return ""
}

// Unallocatable returns why a GPU cannot be allocated as a whole, as far as the scan
// knows and with the checks of the configuration; empty if it can.
func Unallocatable(g *machine.GPU, c *config.NodeConfig) string {
	switch reason := c.Health.Fault(g.Health); {
	case reason != "" || !g.MIG.Enabled:
		return reason
	case g.MIG.Mode != "":
		return "its mode is " + g.MIG.Mode + ", and its partitions are not known"
	case len(g.MIG.Devices) == 0:
		return "MIG is on, and MIG devices are missing"
	}
	return "MIG is on, and migStrategy is none"
}

// noGPUs returns why a machine has no GPU that a driver knows.
func noGPUs(m *machine.Machine, vendors gpu.Vendors) string {
	reason := ""
	for _, v := range vendors {
		reason = cmp.Or(reason, probe(m, v.Probe))
	}
	for _, v := range vendors {
		if bus := v.OnBus(m.PCI); len(bus) > 0 {
			return counted(len(bus), v) + " on the PCI bus, but " + cmp.Or(probe(m, v.Probe), "the driver shows no GPU")
		}
		excused := slices.DeleteFunc(slices.Clone(m.PCI), func(f machine.PCIFunction) bool { return !v.IsGPU(&f) })
		if len(excused) > 0 {
			return counted(len(excused), v) + " " + gpu.Excuse(&excused[0])
		}
	}
	return cmp.Or(reason, "no GPUs")
}

// CPUOnly reports whether a machine has no GPU that a pod could ever get: none in
// the scan, and none on the bus that is not for virtual machines. Such a node
// offers no GPU and need not offer HCAs; nothing is missing.
func CPUOnly(m *machine.Machine, vendors gpu.Vendors) bool {
	if probeFailed(m, "sysfs") {
		return false // The bus is not known.
	}
	return len(m.GPUs) == 0 && !slices.ContainsFunc(vendors, func(v *gpu.Vendor) bool {
		return len(v.OnBus(m.PCI)) > 0
	})
}

// WithoutHCAs reports whether a machine has no HCA that a job could use: none in
// the scan but management functions, and no adapter on the bus that lacks its RDMA
// device. Such a node need not offer HCAs; nothing is missing. Soft RDMA is there
// because it was set up by hand, so a resource without it is worth a word. The roles
// of m's HCAs are corrected.
func WithoutHCAs(m *machine.Machine) bool {
	if probeFailed(m, "rdma") || probeFailed(m, "sysfs") {
		return false // The HCAs or the bus are not known.
	}
	for i := range m.HCAs {
		if role := m.HCAs[i].Role; role != machine.RoleManagement && role != machine.RoleNVSwitch {
			return false
		}
	}
	return !slices.ContainsFunc(m.PCI, func(f machine.PCIFunction) bool {
		return gpu.Excuse(&f) == "" && lacksHCA(m, &f)
	})
}

// lacksHCA reports whether a function lacks an HCA: a controller of
// InfiniBand (class 0207), or on a machine without any RDMA device, an Ethernet
// adapter of a maker with an RDMA driver. Others serve two functions by one
// device, as a RoCE bond does.
func lacksHCA(m *machine.Machine, f *machine.PCIFunction) bool {
	switch {
	case slices.ContainsFunc(m.HCAs, func(h machine.HCA) bool { return h.PCI == f.Address }):
		return false
	case strings.HasPrefix(f.Class, "0x0207"):
		return true
	}
	return len(m.HCAs) == 0 && f.Vendor == sysfs.VendorMellanox && strings.HasPrefix(f.Class, "0x02")
}

// probeFailed reports whether a reader did not finish.
func probeFailed(m *machine.Machine, name string) bool {
	return slices.ContainsFunc(m.Probes, func(p machine.Probe) bool {
		return p.Name == name && (p.State == machine.ProbeFailed || p.State == machine.ProbeTimeout)
	})
}

func counted(gpus int, v *gpu.Vendor) string {
	if gpus == 1 {
		return "1 " + v.Name + " GPU"
	}
	return strconv.Itoa(gpus) + " " + v.Name + " GPUs"
}

// probe returns the error of a reader; empty without one.
func probe(m *machine.Machine, name string) string {
	for i := range m.Probes {
		p := &m.Probes[i]
		switch {
		case p.Name != name || p.State == machine.ProbeOK:
		case (p.State == machine.ProbeAbsent || p.State == machine.ProbeReleased) && p.Reason != "":
			return p.Reason
		case p.State == machine.ProbeTimeout:
			return strings.TrimSuffix(name+" did not answer: "+p.Reason, ": ")
		default:
			return strings.TrimSuffix(fmt.Sprintf("%s %s: %s", name, p.State, p.Reason), ": ")
		}
	}
	return ""
}

// hcas counts the slots of one RDMA resource: for each healthy HCA as many as
// may share it. Under count "all" a pod gets every HCA, so there are as many
// slots as may share them together.
func hcas(m *machine.Machine, c *config.RDMA, r *config.RDMAResource) Resource {
	t := tally{name: r.Name}
	var rejected []string
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if selected, reason := c.Select(m, r, h); !selected {
			rejected = append(rejected, h.Name+": "+reason)
			continue
		}
		t.add(h.Name, Unhealthy(m, r, h, PortsDown), int64(r.Sharers))
	}
	out := t.resource()
	if r.Count == config.CountAll {
		out.Count = min(out.Count, int64(r.Sharers))
	}
	if out.Devices > 0 {
		return out
	}
	switch {
	case len(rejected) > 0:
		out.Reason = "no HCA is selected: " + several(rejected)
	case probe(m, "rdma") != "":
		out.Reason = probe(m, "rdma")
	default:
		out.Reason = "no RDMA devices"
	}
	return out
}

// Unhealthy returns why an HCA of resource r cannot be allocated, empty if it can: what
// health reports, or that it has no device node.
//
// The port of a virtual function that one pod has alone is down until a CNI plugin
// sets its network device up, or gives it a GUID, in the pod's network: the physical
// function's ports decide.
func Unhealthy(m *machine.Machine, r *config.RDMAResource, h *machine.HCA, health func(*machine.HCA) string) string {
	reason := health(h)
	if h.Elsewhere {
		// One that a single pod has is in that pod's network, and its ports are too.
		if reason = ""; r.Sharers > 1 {
			reason = "it is in another network namespace"
		}
	}
	if pf := physical(m, h); reason != "" && pf != nil && r.Sharers == 1 {
		own := reason
		if reason = health(pf); reason != "" && reason != own {
			reason = pf.Name + ", its physical function: " + reason
		}
	}
	if reason == "" && len(h.CharDevices.UVerbs) == 0 {
		return "it has no uverbs device (module ib_uverbs)"
	}
	return reason
}

// physical returns the HCA that a virtual function is of; nil for others.
func physical(m *machine.Machine, h *machine.HCA) *machine.HCA {
	at := slices.IndexFunc(m.HCAs, func(p machine.HCA) bool { return h.PhysFn != "" && p.PCI == h.PhysFn })
	if at < 0 {
		return nil
	}
	return &m.HCAs[at]
}

// PortsDown returns why an HCA cannot carry traffic as far as one scan knows: none of
// its ports is active. Empty if one is.
func PortsDown(h *machine.HCA) string {
	if len(h.Ports) == 0 {
		return "no port could be read"
	}
	var ports []string
	for i := range h.Ports {
		p := &h.Ports[i]
		if p.State == machine.PortActive {
			return ""
		}
		ports = append(ports, fmt.Sprintf("port %d is %s", p.Number, p.State))
	}
	return strings.Join(ports, ", ")
}
