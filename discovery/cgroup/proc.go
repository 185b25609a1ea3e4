package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// maxFile bounds what is read of a cgroup file: a dozen paths.
const maxFile = 64 << 10

// hostPIDs is the first PID namespace of a kernel (PROC_PID_INIT_INO).
const hostPIDs = "pid:[4026531836]"

// Proc is a procfs.
type Proc struct{ Root string }

// HostPIDs reports whether this process is in the host's PID namespace (hostPID of
// a pod). In any other, the PIDs that the driver reports are not those of procfs.
func (p Proc) HostPIDs() bool {
	link, err := os.Readlink(filepath.Join(p.Root, "self", "ns", "pid"))
	return err == nil && link == hostPIDs
}

// Container is that of a process. The error is [fs.ErrNotExist] if the process
// has ended.
func (p Proc) Container(pid int) (Container, error) {
	path := filepath.Join(p.Root, strconv.Itoa(pid), "cgroup")
	f, err := os.Open(path)
	if err != nil {
		return Container{}, fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case errors.Is(err, syscall.ESRCH):
		return Container{}, fmt.Errorf("cgroup of process %d: %w", pid, fs.ErrNotExist)
	case err != nil:
		return Container{}, fmt.Errorf("cgroup of process %d: %w", pid, err)
	case len(text) > maxFile:
		return Container{}, fmt.Errorf("cgroup of process %d: more than %d bytes", pid, maxFile)
	}
	c, err := Parse(string(text))
	if err != nil {
		return Container{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return c, nil
}
