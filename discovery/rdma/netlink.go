package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	// ask may hang although its socket has a timeout: the kernel answers
	// within the call that sends, and waits there for a device that is being
	// removed.
	ask  func() (answer, error)
	last bounded.Reading[answer]
}

// answer is what netlink reports.
type answer struct {
	mode  string
	links []linkInfo
}

// linkInfo is what RDMA netlink reports of a device.
type linkInfo struct {
	name, nodeGUID string
}

// errNoFamily means that the kernel has no such netlink.
var errNoFamily = errors.New("the kernel has no RDMA netlink: ib_core is not loaded")

// NewNetlink returns a reader that goes with the sysfs tree under root; timeout
// bounds a read, and 0 is bounded.DefaultTimeout. Netlink reports on the running
// kernel, so it is asked only if root is that kernel's sysfs, wherever it is
// mounted.
func NewNetlink(root string, timeout time.Duration) *Netlink {
	return &Netlink{apart: apart(root), timeout: cmp.Or(timeout, bounded.DefaultTimeout), ask: ask}
}

// Read returns the network namespace mode and notes where netlink sees other
// devices than hcas.
func (n *Netlink) Read(ctx context.Context, hcas []machine.HCA) (
	mode string, notes []machine.Skipped, probe machine.Probe,
) {
	if n.apart != "" {
		return "", nil, machine.Probe{Name: netlinkProbe, State: machine.ProbeAbsent, Reason: n.apart}
	}
	got, err := n.last.Read(ctx, n.timeout, n.ask)
	probe = bounded.Probe(netlinkProbe, n.timeout, err)
	switch {
	case errors.Is(err, errNoFamily):
		probe.State = machine.ProbeAbsent
		return "", nil, probe
	case err != nil:
		return got.mode, nil, probe // The former devices are no evidence of the present ones.
	}
	return got.mode, compare(hcas, got.links), probe
}

// compare notes where netlink and sysfs disagree about which devices there
// are: one that only netlink sees is in another network namespace (exclusive
// mode) or came a moment ago.
func compare(hcas []machine.HCA, links []linkInfo) []machine.Skipped {
	var notes []machine.Skipped
	for _, l := range links {
		i := slices.IndexFunc(hcas, func(h machine.HCA) bool { return h.Name == l.name })
		switch {
		case i < 0:
			notes = append(notes, machine.Skipped{Name: l.name, Reason: "RDMA netlink lists it, /sys/class/infiniband does not"})
		case l.nodeGUID != "" && hcas[i].NodeGUID != "" && l.nodeGUID != hcas[i].NodeGUID:
			notes = append(notes, machine.Skipped{
				Name:   l.name,
				Reason: fmt.Sprintf("node GUID is %s by netlink and %s by sysfs", l.nodeGUID, hcas[i].NodeGUID),
			})
		}
	}
	for i := range hcas {
		if !slices.ContainsFunc(links, func(l linkInfo) bool { return l.name == hcas[i].Name }) {
			notes = append(notes, machine.Skipped{
				Name: hcas[i].Name, Reason: "/sys/class/infiniband lists it, RDMA netlink does not",
			})
		}
	}
	return notes
}

// ReverseGUID turns the GUID of vishvananda/netlink, eight bytes with the last
// one first ("00:00:00:fe:ff:00:54:50"), into sysfs' 5054:00ff:fe00:0000.
// Empty if it is no such GUID, or all zeroes.
func ReverseGUID(s string) string {
	parts := strings.Split(s, ":")
	if len(parts) != 8 {
		return ""
	}
	slices.Reverse(parts)
	var b strings.Builder
	for i, part := range parts {
		if i > 0 && i%2 == 0 {
			b.WriteByte(':')
		}
		b.WriteString(part)
	}
	guid, err := parseGUID(b.String())
	if err != nil {
		return ""
	}
	return guid
}
