package rdma

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
)

// netlinkProbe is the name of the netlink reader in Machine.Probes.
const netlinkProbe = "rdma-netlink"

// Netlink reads RDMA netlink (NETLINK_RDMA). It is used from one goroutine at a
// time.
type Netlink struct {
	// apart is why netlink is not to be asked.
	apart   string
	timeout time.Duration
	last    bounded.Reading[answer]
}

// answer is what netlink reports: the mode, and the devices' names.
type answer struct {
	mode    string
	devices []string
}

// errNoFamily means that the kernel has no such netlink.
var errNoFamily = errors.New("the kernel has no RDMA netlink: ib_core is not loaded")

// NewNetlink returns a reader that goes with the sysfs tree under root; timeout
// bounds a read, and 0 is bounded.DefaultTimeout. Netlink reports on the running
// kernel, so it is asked only if root is that kernel's sysfs, wherever it is
// mounted.
func NewNetlink(root string, timeout time.Duration) *Netlink {
	return &Netlink{apart: apart(root), timeout: cmp.Or(timeout, bounded.DefaultTimeout)}
}

// Read returns the network namespace mode and notes where netlink sees other
// devices than hcas.
func (n *Netlink) Read(ctx context.Context, hcas []machine.HCA) (
	mode string, notes []machine.Skipped, probe machine.Probe,
) {
	if n.apart != "" {
		return "", nil, machine.Probe{Name: netlinkProbe, State: machine.ProbeAbsent, Reason: n.apart}
	}
	return n.read(ctx, hcas, ask)
}

// read is bounded although the socket has a timeout: the kernel answers within
// the call that sends, and waits there for a device that is being removed.
func (n *Netlink) read(ctx context.Context, hcas []machine.HCA, ask func() (answer, error)) (
	mode string, notes []machine.Skipped, probe machine.Probe,
) {
	got, err := n.last.Read(ctx, n.timeout, ask)
	probe = bounded.Probe(netlinkProbe, n.timeout, err)
	switch {
	case errors.Is(err, errNoFamily):
		probe.State = machine.ProbeAbsent
		return "", nil, probe
	case err != nil:
		return got.mode, nil, probe // The former devices are no evidence of the present ones.
	}
	return got.mode, compare(hcas, got.devices), probe
}

// compare notes where netlink and sysfs disagree about which devices there
// are: one that only netlink sees is in another network namespace (exclusive
// mode) or came a moment ago.
func compare(hcas []machine.HCA, devices []string) []machine.Skipped {
	var notes []machine.Skipped
	for _, name := range devices {
		if !slices.ContainsFunc(hcas, func(h machine.HCA) bool { return h.Name == name }) {
			notes = append(notes, machine.Skipped{Name: name, Reason: "RDMA netlink lists it, /sys/class/infiniband does not"})
		}
	}
	for i := range hcas {
		if !slices.Contains(devices, hcas[i].Name) {
			notes = append(notes, machine.Skipped{
				Name: hcas[i].Name, Reason: "/sys/class/infiniband lists it, RDMA netlink does not",
			})
		}
	}
	return notes
}
