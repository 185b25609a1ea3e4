package ib

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// Ioctls: _IO(0x1b, 3), _IOWR(0x1b, 1, 28 bytes).
	umadEnablePKey    = 0x1b03
	umadRegisterAgent = 0xc01c1b01

	// The request of REGISTER_AGENT: its number is filled in by the kernel; of
	// the rest only class and version matter, since nothing but answers is
	// received. Queue pair 0 is that of SMPs.
	registerLength = 28
	offRegClass    = 21
	offRegVersion  = 22
)

// OpenUMAD opens a port's device, such as /dev/infiniband/umad0, for
// directed-route SMPs. It changes nothing on the port and receives nothing but
// answers; any number of programs may do so at once.
func OpenUMAD(path string) (*UMAD, error) {
	// Not blocking, so that reads can have a deadline.
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	agent, err := register(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return NewUMAD(file, agent), nil
}

func register(file *os.File) (agent uint32, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var request [registerLength]byte
	request[offRegClass], request[offRegVersion] = classDirectedRoute, classVersion
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		if _, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, umadEnablePKey, 0); errno == 0 {
			// The kernel writes the agent's number into the request.
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, umadRegisterAgent, uintptr(unsafe.Pointer(&request[0])))
		}
	})
	switch {
	case err != nil:
		return 0, err
	case errno == unix.EPROTONOSUPPORT:
		return 0, ErrNotInfiniBand
	case errno != 0:
		return 0, fmt.Errorf("register: %w", errno)
	}
	return binary.NativeEndian.Uint32(request[:]), nil
}
