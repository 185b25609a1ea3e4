package lldp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// socket is a packet socket that receives LLDP frames of one network device.
type socket struct {
	netdev string
	index  int
	file   *os.File
	raw    syscall.RawConn
	// links asks in the network namespace that the socket was opened in.
	links *netlink.Handle
}

// Listen opens a packet socket on a network device and joins LLDP's groups
// there, so that the device's filter lets their frames through. It needs
// CAP_NET_RAW, and the network namespace that has the device.
func Listen(netdev string) (Conn, error) {
	// Protocol 0 receives nothing until bind names the device.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("packet socket: %w; it needs CAP_NET_RAW", err)
	}
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	s := &socket{netdev: netdev, file: os.NewFile(uintptr(fd), "lldp")}
	if err := s.open(fd); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *socket) open(fd int) (err error) {
	if s.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("rtnetlink socket: %w", err)
	}
	link, err := s.links.LinkByName(s.netdev)
	if err != nil {
		return err
	}
	s.index = link.Attrs().Index
	if err := s.join(fd); err != nil {
		return err
	}
	s.raw, err = s.file.SyscallConn()
	return err
}

// join leaves no group behind: the kernel takes the socket out of all of them
// when it is closed.
func (s *socket) join(fd int) error {
	for _, group := range groups() {
		membership := unix.PacketMreq{
			Ifindex: int32(s.index), Type: unix.PACKET_MR_MULTICAST, Alen: addressLength, //nolint:gosec // The kernel's int.
		}
		copy(membership.Address[:], group[:])
		err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &membership)
		if err != nil {
			return fmt.Errorf("join a multicast group: %w", err)
		}
	}
	err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(EtherType), Ifindex: s.index})
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// networkOrder is htons.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Receive implements [Conn].
func (s *socket) Receive(b []byte) (n int, err error) {
	var failure error
	err = s.raw.Read(func(fd uintptr) bool {
		n, _, failure = unix.Recvfrom(int(fd), b, 0)
		return !errors.Is(failure, unix.EAGAIN) && !errors.Is(failure, unix.EINTR)
	})
	switch {
	case err != nil:
		return 0, err
	case errors.Is(failure, unix.ENETDOWN):
		return 0, ErrDown
	case failure != nil:
		return 0, failure
	}
	return n, nil
}

// Running implements [Conn].
func (s *socket) Running() (bool, error) {
	link, err := s.links.LinkByName(s.netdev)
	switch {
	case err != nil:
		return false, err
	case link.Attrs().Index != s.index:
		return false, errors.New("another network device has the name now")
	}
	return link.Attrs().RawFlags&unix.IFF_RUNNING != 0, nil
}

// Close implements [Conn].
func (s *socket) Close() error {
	if s.links != nil {
		s.links.Close()
	}
	return s.file.Close()
}
