// Package rdma reads the kernel's RDMA devices: ports, GUIDs, device nodes and
// the network devices on them.
//
// What it reports is sysfs'. RDMA netlink adds the network namespace mode, ethtool's ioctls counters. The package
// changes nothing: no link is set up, no device opened. A device with firmware that does
// not answer keeps its last good values and holds up no other.
package rdma

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// The names of the two readers in Machine.Probes.
const (
	classProbe   = "rdma"
	netlinkProbe = "rdma-netlink"
)

// Reader reads the RDMA devices under a sysfs tree and a device root. It is used
// from one goroutine at a time.
type Reader struct {
	tree    sysfs.FS
	dev     string
	timeout time.Duration
	// apart is why netlink is not to be asked. It reports on the running kernel,
	// so it is asked only if the tree is that kernel's sysfs, wherever it is
	// mounted.
	apart   string
	class   bounded.Reading[listing]
	devices bounded.Group[string, reading]
	// last are the last answers of the devices that the class listed last.
	last map[string]reading
	mode bounded.Reading[string]
	// home: the process has seen a device in its own network namespace. In mode
	// exclusive, one that never has is in the wrong namespace, and the devices that are
	// missing belong to no pod.
	home bool
}

// New returns a reader of tree; dev is the root of device nodes, "/dev";
// timeout bounds a read, and 0 is bounded.DefaultTimeout.
func New(tree sysfs.FS, dev string, timeout time.Duration) *Reader {
	return &Reader{
		tree: tree, dev: filepath.Join(dev, "infiniband"), timeout: cmp.Or(timeout, bounded.DefaultTimeout),
		apart: apart(tree.Root()),
	}
}

// Read lists the class, reads every device, all at once, and asks netlink: HCAs, RDMA, Probes and Skipped of a machine.
// The HCAs lack Vendor, Device, Driver and PhysFn, which come from the PCI function, DataDirect and Role, which take
// more than one device to find. A virtual device's Driver is set. Each of the three takes the timeout at most; what
// hangs costs it once, and none in later reads until it has answered.
func (r *Reader) Read(ctx context.Context) machine.Machine {
	all, err := r.class.Read(ctx, r.timeout, r.list)
	found := machine.Machine{RDMA: machine.RDMA{RDMACM: all.cm}, Skipped: slices.Clone(all.skipped)}
	probe := bounded.Probe(classProbe, r.timeout, err)
	if err == nil && len(all.names) == 0 {
		probe.State, probe.Reason = machine.ProbeAbsent, all.absent
	}
	r.readDevices(ctx, all, &found, &probe)
	if r.apart != "" {
		absent := machine.Probe{Name: netlinkProbe, State: machine.ProbeAbsent, Reason: r.apart}
		found.Probes = []machine.Probe{probe, absent}
		return found
	}
	mode, second := r.netnsMode(ctx, netnsMode)
	found.RDMA.NetnsMode = mode
	r.home = r.home || len(all.names) > 0
	if mode == netnsExclusive && r.home {
		found.HCAs = append(found.HCAs, r.inOtherNamespaces(all)...)
	}
	found.Probes = []machine.Probe{elsewhere(probe, mode), second}
	return found
}

// errNoFamily means that the kernel has no such netlink.
var errNoFamily = errors.New("the kernel has no RDMA netlink: ib_core is not loaded")

// netnsMode returns the network namespace mode. It is bounded although the socket has a timeout:
// the kernel answers within the call that sends, and waits there for a device that is being removed.
func (r *Reader) netnsMode(ctx context.Context, ask func() (string, error)) (mode string, probe machine.Probe) {
	mode, err := r.mode.Read(ctx, r.timeout, ask)
	probe = bounded.Probe(netlinkProbe, r.timeout, err)
	if errors.Is(err, errNoFamily) {
		mode, probe.State = "", machine.ProbeAbsent
	}
	return mode, probe
}

// netnsExclusive is the mode in which an RDMA device belongs to one network namespace.
const netnsExclusive = "exclusive"

// inOtherNamespaces returns the devices that have moved into other network namespaces.
// Of the classes only infiniband has namespaces (ib_class in drivers/infiniband/core/
// device.c sets ns_type). infiniband_verbs (uverbs_class in uverbs_main.c) sets none:
// it lists the device nodes of all, with the name of the device (ibdev), below the
// PCI function.
func (r *Reader) inOtherNamespaces(all listing) []machine.HCA {
	var hcas []machine.HCA
	for _, name := range slices.Sorted(maps.Keys(all.nodes)) {
		nodes := all.nodes[name]
		if slices.Contains(all.names, name) || len(nodes.UVerbs) == 0 {
			continue
		}
		place := sysfs.ParsePlace(r.tree.Link("class/infiniband_verbs/" + nodes.UVerbs[0]))
		if pci := place.Function(); pci != "" {
			hcas = append(hcas, machine.HCA{
				Name: name, PCI: strings.ToLower(pci), Elsewhere: true, CharDevices: nodes, Ports: []machine.Port{},
			})
		}
	}
	return hcas
}

// elsewhere adds to a probe that found no device that there may be some
// elsewhere.
func elsewhere(probe machine.Probe, mode string) machine.Probe {
	if probe.State == machine.ProbeAbsent && mode == netnsExclusive {
		probe.Reason += "; network namespaces have RDMA devices of their own (mode exclusive), and this one has none"
	}
	return probe
}

// readDevices reads what the class lists. A device that failed to answer has
// its last good values, and is listed among the skipped.
func (r *Reader) readDevices(ctx context.Context, all listing, found *machine.Machine, probe *machine.Probe) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	last := r.last
	r.last = map[string]reading{}
	answers := r.devices.Ask(ctx, all.names, func(name string) (reading, error) { return r.device(name), nil })
	for i, name := range all.names {
		one, err := answers[i].Value, answers[i].Err
		if err != nil {
			one = last[name]
		}
		r.last[name] = one
		found.Skipped = append(found.Skipped, one.skipped...)
		if err != nil {
			reason := bounded.Reason(r.timeout, err)
			if probe.State == machine.ProbeOK {
				*probe = bounded.Probe(classProbe, r.timeout, err)
				probe.Reason = name + " " + probe.Reason
			}
			if one.isDevice {
				reason += "; its values are the last good ones"
			}
			found.Skipped = append(found.Skipped, machine.Skipped{Name: name, Reason: reason})
		}
		if one.isDevice {
			h := one.hca
			h.Ports = slices.Clone(h.Ports) // They may be in a Machine already.
			h.CharDevices = all.nodes[name]
			found.HCAs = append(found.HCAs, h)
		}
	}
}
