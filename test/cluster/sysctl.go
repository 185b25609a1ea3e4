//go:build linux

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// hostSysctls are the values of the whole machine that the kubelet's container manager sets at
// start (setupKernelTunables), and the kernel's limit of inotify instances for each user: every kubelet,
// containerd and plugin takes some ten of them, and the default of 128 is for one node on a machine.
func hostSysctls() []string {
	return []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", inotifyInstances,
	}
}

const (
	inotifyInstances = "fs/inotify/max_user_instances"
	enoughInstances  = 1024
)

func (c *Cluster) sysctlFile() string { return filepath.Join(c.state.Dir, "sysctl.json") }

// saveSysctls keeps the machine's values for restoreSysctls, and raises what has to be.
func (c *Cluster) saveSysctls() error {
	saved := map[string]string{}
	for _, name := range hostSysctls() {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // Not in this kernel, so the kubelet cannot set it either.
		}
		if err != nil {
			return fmt.Errorf("read sysctl %s: %w", name, err)
		}
		saved[name] = strings.TrimSpace(string(value))
	}
	text, err := json.Marshal(saved)
	if err = errors.Join(err, os.WriteFile(c.sysctlFile(), text, 0o600)); err != nil {
		return fmt.Errorf("save sysctls: %w", err)
	}
	if n, err := strconv.Atoi(saved[inotifyInstances]); err != nil || n >= enoughInstances {
		return nil //nolint:nilerr // The kernel has no such limit.
	}
	return os.WriteFile(filepath.Join("/proc/sys", inotifyInstances), []byte(strconv.Itoa(enoughInstances)), 0)
}

// restoreSysctls puts back what saveSysctls kept.
func (c *Cluster) restoreSysctls() error {
	text, err := os.ReadFile(c.sysctlFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var saved map[string]string
	if err = errors.Join(err, json.Unmarshal(text, &saved)); err != nil {
		return fmt.Errorf("read sysctls: %w", err)
	}
	var errs []error
	for name, value := range saved {
		errs = append(errs, os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0))
	}
	return errors.Join(errs...)
}
