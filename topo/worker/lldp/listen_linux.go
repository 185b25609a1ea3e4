package lldp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// link returns the index of a network device, and whether its link is up.
func link(netdev string) (index int, up bool, err error) {
	l, err := netlink.LinkByName(netdev) //nolint:forbidigo // One device is asked for, not all; the next round asks again.
	if err != nil {
		return 0, false, err
	}
	return l.Attrs().Index, l.Attrs().RawFlags&unix.IFF_RUNNING != 0, nil
}

// listen opens a packet socket on a network device and joins LLDP's groups
// there, so that the device's filter accepts their frames. It needs
// CAP_NET_RAW, and the network namespace that has the device.
func listen(index int) (*os.File, error) {
	// Protocol 0 receives nothing until bind names the device.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("packet socket: %w; it needs CAP_NET_RAW", err)
	}
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "lldp")
	if err := join(fd, index); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// join leaves no group behind: the kernel takes the socket out of all of them
// when it is closed.
func join(fd, index int) error {
	for _, group := range groups() {
		membership := unix.PacketMreq{
			Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: addressLength, //nolint:gosec // The kernel's int.
		}
		copy(membership.Address[:], group[:])
		err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &membership)
		if err != nil {
			return fmt.Errorf("join a multicast group: %w", err)
		}
	}
	networkOrder := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, EtherType))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder, Ifindex: index}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}
