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
	// the rest only queue pair, class and version matter, since nothing but
	// answers is received. Queue pair 0 carries SMPs.
	registerLength = 28
	offRegQueue    = 20
	offRegClass    = 21
	offRegVersion  = 22
)

// OpenUMAD opens a port's device, such as /dev/infiniband/umad0, for directed-route SMPs, and for queries to the subnet
// administrator and to switches. It changes nothing on the port and receives nothing but answers; any number of
// programs may do so at once.
func OpenUMAD(path string) (*UMAD, error) {
	// Not blocking, so that reads can have a deadline.
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	u, err := registered(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return u, nil
}

// registered makes the agents. A port without queue pair 0, such as a virtual function's, has only the agents of queue
// pair 1, and an SMI device has only the other one.
func registered(file *os.File) (*UMAD, error) {
	// The kernel accepts this only before the first agent.
	if err := ioctl(file, umadEnablePKey, nil); err != nil {
		return nil, fmt.Errorf("enable P_Keys: %w", err)
	}
	agent, err := register(file, 0, classDirectedRoute, classVersion)
	noSMI := errors.Is(err, ErrNotInfiniBand)
	if err != nil && !noSMI {
		return nil, err
	}
	u := NewUMAD(file, agent)
	u.noSMI = noSMI
	u.administration, err = register(file, serviceQueue, classAdministration, administration)
	if u.noServices = errors.Is(err, ErrNotInfiniBand); u.noServices && !noSMI {
		return u, nil
	}
	if err == nil {
		u.manager, err = register(file, serviceQueue, classPerformance, classVersion)
	}
	if err != nil {
		return nil, err
	}
	return u, nil
}

func register(file *os.File, queue, class, version byte) (agent uint32, err error) {
	var request [registerLength]byte
	request[offRegQueue], request[offRegClass], request[offRegVersion] = queue, class, version
	// The kernel writes the agent's number into the request.
	err = ioctl(file, umadRegisterAgent, &request)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return 0, ErrNotInfiniBand
	case err != nil:
		return 0, fmt.Errorf("register: %w", err)
	}
	return binary.NativeEndian.Uint32(request[:]), nil
}

func ioctl(file *os.File, number uintptr, request *[registerLength]byte) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, number, uintptr(unsafe.Pointer(request)))
	})
	if err == nil && errno != 0 {
		return errno
	}
	return err
}
