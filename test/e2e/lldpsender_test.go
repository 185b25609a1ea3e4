//go:build e2e && linux

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// lldpSender makes the test binary a switch: it lays a cable to a network device
// that it makes, in the network namespace that it runs in, and sends every second
// who is at its end.
const lldpSender = "send-lldp"

func sendLLDP(netdev string) error {
	const port = "swp1"
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: netdev}, PeerName: port}
	if err := netlink.LinkAdd(cable); err != nil {
		return fmt.Errorf("lay a cable: %w", err)
	}
	for _, name := range []string{netdev, port} {
		if err := netlink.LinkSetUp(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	end, err := net.InterfaceByName(port)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	tick := time.NewTicker(time.Second)
	for {
		if err := unix.Sendto(fd, lldpFrame(port), 0, &unix.SockaddrLinklayer{Ifindex: end.Index}); err != nil {
			return fmt.Errorf("send a frame: %w", err)
		}
		<-tick.C
	}
}

// lldpFrame is what leaf-07 sends: chassis by its address, port by its name, two
// minutes to live.
func lldpFrame(port string) []byte {
	part := func(kind byte, value ...byte) []byte { return append([]byte{kind << 1, byte(len(value))}, value...) }
	return bytes.Join([][]byte{
		{0x01, 0x80, 0xc2, 0, 0, 0x0e, 0x02, 0, 0, 0, 0xee, 0x01, 0x88, 0xcc},
		part(1, 4, 0x02, 0, 0, 0, 0xee, 0), part(2, append([]byte{5}, port...)...), part(3, 0, 120),
		part(5, []byte("leaf-07")...), part(0),
	}, nil)
}
