package ib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotInfiniBand means that a port carries no SMPs: the kernel's answer for
// RoCE.
var ErrNotInfiniBand = errors.New("not an InfiniBand port")

// umad is an open /dev/infiniband/umadN. It is for one goroutine.
type umad struct {
	file  *os.File
	agent uint32
}

// OpenUMAD opens a port's device, such as /dev/infiniband/umad0, for
// directed-route SMPs. It changes nothing on the port and receives nothing but
// answers; any number of programs may do so at once.
func OpenUMAD(path string) (Transport, error) {
	// Not blocking, so that reads can have a deadline.
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	u := &umad{file: file}
	if err := u.register(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return u, nil
}

func (u *umad) register() error {
	raw, err := u.file.SyscallConn()
	if err != nil {
		return err
	}
	request := registration()
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		if _, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, umadEnablePKey, 0); errno == 0 {
			// The kernel writes the agent's number into the request.
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, umadRegisterAgent, uintptr(unsafe.Pointer(&request[0])))
		}
	})
	switch {
	case err != nil:
		return err
	case errno == unix.EPROTONOSUPPORT:
		return ErrNotInfiniBand
	case errno != 0:
		return fmt.Errorf("register: %w", errno)
	}
	u.agent = binary.NativeEndian.Uint32(request[:])
	return nil
}

// Exchange implements [Transport].
func (u *umad) Exchange(ctx context.Context, request *MAD) (MAD, error) {
	deadline := time.Now().Add(umadPatience)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := u.file.SetReadDeadline(deadline); err != nil {
		return MAD{}, err
	}
	out := encodeUMAD(u.agent, request)
	if _, err := u.file.Write(out[:]); err != nil {
		return MAD{}, cause(err)
	}
	var in [umadLength]byte
	for ctx.Err() == nil {
		n, err := u.file.Read(in[:])
		if err != nil {
			return MAD{}, cause(err)
		}
		if answer, done, err := decodeUMAD(in[:n], request); done {
			return answer, err
		}
	}
	return MAD{}, ctx.Err()
}

// cause leaves out the file, which the caller names.
func cause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrNoAnswer
	}
	if at, ok := errors.AsType[*os.PathError](err); ok {
		return at.Err
	}
	return err
}

// Close implements [Transport]; the kernel forgets the agent.
func (u *umad) Close() error { return u.file.Close() }
