//go:build linux

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup hierarchy.
type hierarchy struct {
	dir         string // mount point
	controllers []string
	v2          bool
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

// readHierarchies lists the cgroup mounts of a mountinfo file.
func readHierarchies(mountinfo string) ([]hierarchy, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, fmt.Errorf("read cgroup mounts: %w", err)
	}
	defer func() { _ = f.Close() }()
	var all []hierarchy
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if h, ok := parseHierarchy(lines.Text()); ok {
			all = append(all, h)
		}
	}
	return all, lines.Err()
}

// parseHierarchy reads a line of mountinfo: the mount point is the fifth field,
// type, source and super options follow the separator.
func parseHierarchy(line string) (hierarchy, bool) {
	mount, super, ok := strings.Cut(line, " - ")
	left, right := strings.Fields(mount), strings.Fields(super)
	if !ok || len(left) < 5 || len(right) < 3 {
		return hierarchy{}, false
	}
	h := hierarchy{dir: left[4]}
	switch right[0] {
	case "cgroup2":
		h.v2 = true
		if data, err := os.ReadFile(filepath.Join(h.dir, "cgroup.controllers")); err == nil {
			h.controllers = strings.Fields(string(data))
		}
	case "cgroup":
		for option := range strings.SplitSeq(right[2], ",") {
			if option != "rw" && option != "ro" {
				h.controllers = append(h.controllers, strings.TrimPrefix(option, "name="))
			}
		}
	default:
		return hierarchy{}, false
	}
	return h, true
}

// cgroups is the cgroup root of one cluster: /NAME in every hierarchy. Below it,
// system holds our daemons and node is the kubelet's cgroupRoot, so that whatever
// runs below NAME belongs to the cluster, containers included.
type cgroups struct {
	name        string
	hierarchies []hierarchy
}

const (
	cgroupSystem = "system"
	cgroupNode   = "node"
)

// create makes the root in every hierarchy: the kubelet requires its cgroupRoot to exist.
func (c cgroups) create() error {
	for _, h := range c.hierarchies {
		for _, sub := range []string{"", cgroupSystem, cgroupNode} {
			dir := filepath.Join(h.dir, c.name, sub)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("create cgroup: %w", err)
			}
			if err := prepareCgroup(h, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

func prepareCgroup(h hierarchy, dir string) error {
	if h.v2 {
		return enableControllers(h, filepath.Dir(dir))
	}
	if !h.has("cpuset") {
		return nil
	}
	// A new v1 cpuset has no CPUs and no memory nodes, and takes no process.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			return fmt.Errorf("read parent cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return fmt.Errorf("set cpuset: %w", err)
		}
	}
	return nil
}

// enableControllers passes the controllers of a v2 group on to its children. One
// at a time and best effort: a single unavailable one would fail them all.
func enableControllers(h hierarchy, dir string) error {
	for _, c := range h.controllers {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("enable controller %s: %w", c, err)
		}
	}
	return nil
}

// entry lists the cgroup.procs files a new daemon joins.
func (c cgroups) entry() []string {
	files := make([]string, 0, len(c.hierarchies))
	for _, h := range c.hierarchies {
		files = append(files, filepath.Join(h.dir, c.name, cgroupSystem, "cgroup.procs"))
	}
	return files
}

// procs lists the processes below a part of the root, in any hierarchy.
func (c cgroups) procs(sub string) []int {
	seen := map[int]bool{}
	for _, h := range c.hierarchies {
		_ = filepath.WalkDir(filepath.Join(h.dir, c.name, sub), func(dir string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return nil //nolint:nilerr // a group that went away has no processes
			}
			data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for field := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
					seen[pid] = true
				}
			}
			return nil
		})
	}
	pids := make([]int, 0, len(seen))
	for pid := range seen {
		if running(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill ends every process below a part of the root. Membership is the proof of
// ownership: nothing but what we started, and its children, is ever in there.
func (c cgroups) kill(ctx context.Context, sub string) error {
	err := poll(ctx, 20*time.Millisecond, func() (bool, error) {
		pids := c.procs(sub)
		if len(pids) > 0 {
			c.thaw(sub)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(pids) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("kill processes of cgroup %s/%s: %w", c.name, sub, err)
	}
	return nil
}

// thaw wakes what a test may have frozen: a v1 freezer holds SIGKILL back.
func (c cgroups) thaw(sub string) {
	for _, h := range c.hierarchies {
		if !h.has("freezer") || h.v2 {
			continue
		}
		_ = filepath.WalkDir(filepath.Join(h.dir, c.name, sub), func(dir string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
			}
			return nil // A group that went away is not frozen.
		})
	}
}

// remove deletes the root everywhere. A group stays busy for a moment after its
// last process was killed, hence the retries.
func (c cgroups) remove(ctx context.Context) error {
	err := poll(ctx, 20*time.Millisecond, func() (bool, error) {
		left := false
		for _, h := range c.hierarchies {
			removeTree(filepath.Join(h.dir, c.name))
			if _, err := os.Stat(filepath.Join(h.dir, c.name)); err == nil {
				left = true
			}
		}
		return !left, nil
	})
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", c.name, err)
	}
	return nil
}

// removeTree removes directories from the leaves up: a cgroup's files cannot be
// unlinked, and rmdir ignores them.
func removeTree(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()))
		}
	}
	_ = unix.Rmdir(dir)
}
