package host

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/rdma"
)

const (
	// readEvery is the longest time between two readings of all that sysfs has.
	readEvery = 5 * time.Minute
	// movingTimeout is for what takes milliseconds: an adapter that does not answer is left to the full reading.
	movingTimeout = time.Second
)

// still is a machine without GPUs.
type still struct {
	machine *machine.Machine
	// moving is the answer of h.moved before it was read, readAgain the time at which it is read again at the latest.
	moving    string
	readAgain time.Time
}

// withoutGPUs returns the machine without GPUs: as it was last read if quick is set, it was read lately, and what
// changes without a kernel event is the same. Most of sysfs describes what was built in, and a port's attributes are
// questions to the adapter's firmware. The caller may append to the lists.
func (h *Host) withoutGPUs(ctx context.Context, quick bool) *machine.Machine {
	now, known := time.Now(), h.still.machine
	moving, err := h.moved(ctx, cmp.Or(known, &machine.Machine{}).HCAs)
	if !quick || err != nil || known == nil || moving != h.still.moving || now.After(h.still.readAgain) {
		m := &machine.Machine{Version: machine.Version, Node: h.options.NodeName}
		h.readCPU(ctx, m)
		h.readRDMA(ctx, m)
		h.readPCI(ctx, m)
		h.joinHCAs(ctx, m)
		m.Sort()
		h.still = still{m, moving, now.Add(readEvery)}
		if slices.ContainsFunc(m.Probes, func(p machine.Probe) bool { return p.State == machine.ProbeTimeout }) {
			h.still.readAgain = now
		}
		if known != nil && reflect.DeepEqual(known, m) {
			h.still.machine = known // The next comparison of machines is by pointers.
		}
	}
	m := *h.still.machine
	m.Skipped, m.Probes = slices.Clip(m.Skipped), slices.Clip(m.Probes)
	return &m
}

// moved returns what changes without a kernel event: which devices there are, and the states of the ports of the HCAs.
func (h *Host) moved(ctx context.Context, hcas []machine.HCA) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, min(movingTimeout, h.options.Timeout))
	defer cancel()
	return h.moving.Do(ctx, func() (string, error) {
		functions, err := h.tree.List("bus/pci/devices")
		return strings.Join(append(functions, rdma.States(h.tree, hcas)...), "\n"), err
	})
}
