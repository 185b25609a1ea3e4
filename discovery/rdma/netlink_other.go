//go:build !linux

package rdma

import "github.com/heddle-dev/heddle/api/machine"

// Netlink is absent on other systems than Linux.
type Netlink struct{}

// NewNetlink returns a reader that finds nothing.
func NewNetlink(string) Netlink { return Netlink{} }

// Read reports that there is no RDMA netlink.
func (Netlink) Read([]machine.HCA) (mode string, notes []machine.Skipped, probe machine.Probe) {
	return "", nil, machine.Probe{Name: NetlinkProbe, State: machine.ProbeAbsent, Reason: "not Linux"}
}
