// Package rdma reads the kernel's RDMA devices: ports, GUIDs, device nodes and
// the network devices on them.
//
// What it reports is sysfs'. RDMA netlink adds the network namespace mode and
// notes devices that it lists and sysfs does not; it never adds or removes one.
// The package changes nothing: no link is set up, no device opened. A device
// whose firmware does not answer keeps its last good values and holds up no
// other.
package rdma

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// classProbe is the name of the sysfs reader in Machine.Probes.
const classProbe = "rdma"

// Reader reads the RDMA devices under a sysfs tree and a device root. Its
// methods may be called from any goroutine.
type Reader struct {
	tree    sysfs.FS
	dev     string
	timeout time.Duration

	// mu serializes reads and guards what follows.
	mu      sync.Mutex
	class   bounded.Reading[listing]
	devices map[string]*bounded.Reading[reading]
}

// New returns a reader of tree; dev is the root of device nodes, "/dev";
// timeout bounds a read, and 0 is bounded.DefaultTimeout.
func New(tree sysfs.FS, dev string, timeout time.Duration) *Reader {
	return &Reader{
		tree: tree, dev: filepath.Join(dev, "infiniband"), timeout: cmp.Or(timeout, bounded.DefaultTimeout),
		devices: map[string]*bounded.Reading[reading]{},
	}
}

// Devices is what one read found.
type Devices struct {
	// HCAs lack Vendor, Device, Driver and PhysFn, which are those of the
	// PCI function, DataDirect and Role, which take more than one device to
	// find. A virtual device's Driver is set.
	HCAs []machine.HCA
	// CM reports whether infiniband/rdma_cm is among the device nodes.
	CM bool
	// Probe is the entry for Machine.Probes.
	Probe   machine.Probe
	Skipped []machine.Skipped
}

// Read lists the class and reads every device, all at once. Each of the two
// takes the timeout at most; what hangs costs it once, and none in later reads
// until it has answered.
func (r *Reader) Read(ctx context.Context) Devices {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := r.class.Read(ctx, r.timeout, r.list)
	found := Devices{CM: all.cm, Probe: bounded.Probe(classProbe, r.timeout, err), Skipped: slices.Clone(all.skipped)}
	if err == nil && len(all.names) == 0 {
		found.Probe.State, found.Probe.Reason = machine.ProbeAbsent, all.absent
	}
	r.readDevices(ctx, all, &found)
	return found
}

// readDevices reads what the class lists. A device that failed to answer has
// its last good values, and is listed among the skipped.
func (r *Reader) readDevices(ctx context.Context, all listing, found *Devices) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	waits := make([]func(context.Context) (reading, error), len(all.names))
	listed := map[string]bool{}
	for i, name := range all.names {
		listed[name] = true
		if r.devices[name] == nil {
			r.devices[name] = &bounded.Reading[reading]{}
		}
		waits[i] = r.devices[name].Start(func() (reading, error) { return r.device(name), nil })
	}
	for i, name := range all.names {
		one, err := waits[i](ctx)
		found.Skipped = append(found.Skipped, one.skipped...)
		if err != nil {
			reason := bounded.Reason(r.timeout, err)
			if found.Probe.State == machine.ProbeOK {
				found.Probe = bounded.Probe(classProbe, r.timeout, err)
				found.Probe.Reason = name + " " + found.Probe.Reason
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
	for name, d := range r.devices {
		if !listed[name] && !d.Busy() {
			delete(r.devices, name)
		}
	}
}
