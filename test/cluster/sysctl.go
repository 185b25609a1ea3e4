//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// sysctls keeps the values that kubelets overwrite for the whole machine, and the one
// that several nodes on a machine need raised. Clusters share one record: the first
// saves the values, the last puts them back, in whatever order they come down.
type sysctls struct {
	proc   string // /proc/sys
	record string // the shared file
}

// sysctlRecord is the content of the shared file.
type sysctlRecord struct {
	Saved   map[string]string `json:"saved"`   // sysctl file below /proc/sys -> value
	Holders []string          `json:"holders"` // state directories of the clusters
}

// kubeletSysctls are the ones the kubelet's container manager sets at start
// (setupKernelTunables).
func kubeletSysctls() []string {
	return []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	}
}

// inotifyInstances is the kernel's limit for each user. Every kubelet, containerd and
// plugin takes some ten of them, and the default of 128 is for one node on a machine.
const (
	inotifyInstances = "fs/inotify/max_user_instances"
	enoughInstances  = 1024
)

func hostSysctls() sysctls {
	// One record for the machine, whatever the cache: the values are the machine's.
	return sysctls{proc: "/proc/sys", record: "/run/heddle-cluster/sysctl.json"}
}

// hold registers a cluster, and saves the values when it is the first.
func (s sysctls) hold(ctx context.Context, holder string) error {
	return s.update(ctx, func(r *sysctlRecord) error {
		s.forgetGone(r)
		if len(r.Holders) == 0 && len(r.Saved) == 0 {
			r.Saved = map[string]string{}
			for _, name := range append(kubeletSysctls(), inotifyInstances) {
				value, err := os.ReadFile(filepath.Join(s.proc, name))
				if errors.Is(err, fs.ErrNotExist) {
					continue // Not in this kernel, so the kubelet cannot set it either.
				}
				if err != nil {
					return fmt.Errorf("read sysctl %s: %w", name, err)
				}
				r.Saved[name] = strings.TrimSpace(string(value))
			}
		}
		if !slices.Contains(r.Holders, holder) {
			r.Holders = append(r.Holders, holder)
		}
		return s.raise(inotifyInstances, enoughInstances)
	})
}

// raise gives a limit at least this value, where the kernel has it.
func (s sysctls) raise(name string, least int) error {
	file := filepath.Join(s.proc, name)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", name, err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n >= least {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(least)), 0); err != nil {
		return fmt.Errorf("raise sysctl %s: %w", name, err)
	}
	return nil
}

// release removes a cluster, and puts the values back when it was the last.
func (s sysctls) release(ctx context.Context, holder string) error {
	if _, err := os.Stat(s.record); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.update(ctx, func(r *sysctlRecord) error {
		r.Holders = slices.DeleteFunc(r.Holders, func(h string) bool { return h == holder })
		s.forgetGone(r)
		if len(r.Holders) > 0 {
			return nil
		}
		var errs []error
		for name, value := range r.Saved {
			if err := os.WriteFile(filepath.Join(s.proc, name), []byte(value), 0); err != nil {
				errs = append(errs, fmt.Errorf("restore sysctl %s: %w", name, err))
			}
		}
		r.Saved = nil
		return errors.Join(errs...)
	})
}

// forgetGone drops clusters with a state directory that was deleted by hand.
func (sysctls) forgetGone(r *sysctlRecord) {
	r.Holders = slices.DeleteFunc(r.Holders, func(h string) bool {
		_, err := os.Stat(h)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// update changes the record under its lock. An empty record is removed together
// with its directory, the only thing of heddle's outside the cache.
func (s sysctls) update(ctx context.Context, change func(*sysctlRecord) error) error {
	dir := filepath.Dir(s.record)
	// The lock is beside the directory's entries, not the record: flock on a file
	// that is then removed would let two processes in.
	lock, err := hostfile.TakeLock(ctx, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	var r sysctlRecord
	data, err := os.ReadFile(s.record)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read sysctl record: %w", err)
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("parse sysctl record: %w", err)
		}
	}
	failed := change(&r)
	if len(r.Holders) == 0 && len(r.Saved) == 0 {
		err = errors.Join(os.RemoveAll(s.record), os.Remove(dir))
	} else if data, err = json.Marshal(r); err == nil {
		if err = os.WriteFile(s.record+".tmp", data, 0o600); err == nil {
			err = os.Rename(s.record+".tmp", s.record)
		}
	}
	if err != nil {
		err = fmt.Errorf("write sysctl record: %w", err)
	}
	return errors.Join(failed, err)
}
