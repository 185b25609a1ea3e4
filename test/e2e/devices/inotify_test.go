//go:build e2e && linux

package devices

import (
	"bytes"
	"os"
	"strconv"
)

// inotifyInstances is the kernel's limit for each user. Every kubelet,
// containerd and plugin takes some ten of them, and the default of 128 is for
// one node on a machine.
const (
	inotifyInstances = "/proc/sys/fs/inotify/max_user_instances"
	enoughInstances  = 1024
)

// moreInotify raises the limit where it is low; restore puts it back.
func moreInotify() (restore func() error, err error) {
	old, err := os.ReadFile(inotifyInstances)
	if err != nil {
		return nil, err
	}
	if n, err := strconv.Atoi(string(bytes.TrimSpace(old))); err != nil || n >= enoughInstances {
		return func() error { return nil }, err
	}
	restore = func() error { return os.WriteFile(inotifyInstances, old, 0o644) }
	return restore, os.WriteFile(inotifyInstances, []byte(strconv.Itoa(enoughInstances)), 0o644)
}
