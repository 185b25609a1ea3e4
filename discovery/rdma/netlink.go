package rdma

import (
	"context"
	"errors"
	"slices"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
)

// answer has the values of RDMA netlink (NETLINK_RDMA): the network namespace
// mode, and the devices' names.
type answer struct {
	mode    string
	devices []string
}

// errNoFamily means that the kernel has no such netlink.
var errNoFamily = errors.New("the kernel has no RDMA netlink: ib_core is not loaded")

// compare returns the mode, and notes where netlink and sysfs disagree about
// which devices there are: one that only netlink sees is in another network
// namespace (exclusive mode) or came a moment ago. It is bounded although the
// socket has a timeout: the kernel answers within the call that sends, and waits
// there for a device that is being removed.
func (r *Reader) compare(ctx context.Context, hcas []machine.HCA, ask func() (answer, error)) (
	mode string, notes []machine.Skipped, probe machine.Probe,
) {
	got, err := r.netlink.Read(ctx, r.timeout, ask)
	probe = bounded.Probe(netlinkProbe, r.timeout, err)
	switch {
	case errors.Is(err, errNoFamily):
		probe.State = machine.ProbeAbsent
		return "", nil, probe
	case err != nil:
		return got.mode, nil, probe // The former devices do not prove the present ones.
	}
	for _, name := range got.devices {
		if !slices.ContainsFunc(hcas, func(h machine.HCA) bool { return h.Name == name }) {
			notes = append(notes, machine.Skipped{Name: name, Reason: "RDMA netlink lists it, /sys/class/infiniband does not"})
		}
	}
	for i := range hcas {
		if !slices.Contains(got.devices, hcas[i].Name) {
			notes = append(notes, machine.Skipped{
				Name: hcas[i].Name, Reason: "/sys/class/infiniband lists it, RDMA netlink does not",
			})
		}
	}
	return got.mode, notes, probe
}
