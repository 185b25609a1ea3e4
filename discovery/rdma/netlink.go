package rdma

import (
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// NetlinkProbe is the name of the netlink reader in Machine.Probes.
const NetlinkProbe = "rdma-netlink"

// linkInfo is what RDMA netlink tells of a device.
type linkInfo struct {
	name, nodeGUID string
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
	guid, err := ParseGUID(b.String())
	if err != nil {
		return ""
	}
	return guid
}
