//go:build linux

package nodens

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Entry describes where a command is to run.
type Entry struct {
	// Cgroups are the cgroup.procs files the process joins, before anything else:
	// what it starts is then known to belong to the cluster.
	Cgroups []string
	// Holder is the pid whose mount and network namespaces are entered; 0 stays outside.
	Holder int
	// Dir is the working directory after entering; / when it is empty or not there.
	Dir string
}

// Exec joins the cgroups and namespaces of e and becomes the command. It only
// returns on failure.
func Exec(e Entry, args []string) error {
	// setns moves one thread only; execve then gives the whole process that
	// thread's namespaces, because it ends all others.
	runtime.LockOSThread()
	for _, procs := range e.Cgroups {
		if err := os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	if e.Holder > 0 {
		if err := enter(e.Holder); err != nil {
			return err
		}
	}
	if e.Dir == "" || os.Chdir(e.Dir) != nil {
		if err := os.Chdir("/"); err != nil {
			return err
		}
	}
	file, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	if err := unix.Exec(file, args, os.Environ()); err != nil {
		return fmt.Errorf("exec %s: %w", file, err)
	}
	return nil
}

func enter(holder int) error {
	// A thread that shares its root and working directory with others may not
	// change its mount namespace (EINVAL from setns).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare fs: %w", err)
	}
	// The network first: /proc/PID/ns must still be the host's view.
	for _, ns := range []struct {
		name string
		kind int
	}{{"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}} {
		if err := setns(fmt.Sprintf("/proc/%d/ns/%s", holder, ns.name), ns.kind); err != nil {
			return fmt.Errorf("enter %s namespace: %w", ns.name, err)
		}
	}
	return nil
}
