// Package cgroup finds the pod and the container of a process, by where
// the kubelet and the container runtime have put it in the tree of cgroups.
//
// It owns the spellings of that tree: cgroup v1, v2 and hybrid, the drivers
// systemd and cgroupfs, containerd, CRI-O and cri-dockerd. What it
// does not recognize is an error and never a guess. It also finds the processes
// that have a device node open. It asks no API, moves no process, and knows
// nothing of GPUs.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// Container is where a process runs.
type Container struct {
	// PodUID is the pod's UID as the kubelet has it: of a static pod the hash of
	// its file, 32 hexadecimal digits.
	PodUID string
	// ID is the container runtime's, 64 hexadecimal digits; empty if the path
	// does not report it.
	ID string
}

// ErrNoPod means that nothing in the path looks like a pod's cgroup: a process
// of the host, or of a layout that is not known here.
var ErrNoPod = errors.New("in no pod's cgroup")

// parse reads the text of /proc/<pid>/cgroup, one line per hierarchy:
// "id:controllers:path". A path may be relative to the reader's own cgroup
// namespace ("/../../kubepods-pod….slice/…"). Hierarchies that name no pod do not
// matter if another does; two that name different ones are an error.
func parse(text string) (Container, error) {
	var found Container
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			return Container{}, fmt.Errorf("line %q is not of a cgroup file", line)
		}
		c := ofPath(strings.TrimSuffix(fields[2], " (deleted)"))
		switch {
		case c.PodUID == "":
			continue
		case found.PodUID != "" && found.PodUID != c.PodUID:
			return Container{}, fmt.Errorf("two pods, %s and %s", found.PodUID, c.PodUID)
		case found.ID != "" && c.ID != "" && found.ID != c.ID:
			return Container{}, fmt.Errorf("two containers, %s and %s", found.ID, c.ID)
		}
		found.PodUID = c.PodUID
		if c.ID != "" {
			found.ID = c.ID
		}
	}
	if found.PodUID == "" {
		return Container{}, ErrNoPod
	}
	return found, nil
}

// inPod finds the outermost pod of a path: what is below a container's cgroup is named by
// the root user of the container. A pod is "pod<uid>" with the driver cgroupfs, and
// "kubepods[-burstable|-besteffort]-pod<uid>.slice" with systemd, which has underscores for
// dashes and may have a root before it. The container is the next name,
// "cri-containerd-<id>.scope", "crio-<id>" or "<id>". With runc's systemd notation and the
// driver cgroupfs, slice, runtime and ID are one name with colons.
var inPod = regexp.MustCompile(`(?:^|[/:])` +
	`(?:pod(` + uidPattern + `)|(?:[^/:]*-)?kubepods(?:-burstable|-besteffort)?-pod(` + uidPattern + `)\.slice)` +
	`(?:(?::[^/:]+)?[/:](?:[^/:]*-)?([0-9a-f]{64})(?:\.scope)?(?:[/:]|$)|[/:]|$)`)

// uidPattern is of a UID, and of a static pod's, which is a hash.
const uidPattern = `[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}`

func ofPath(path string) Container {
	m := inPod.FindStringSubmatch(path)
	if m == nil {
		return Container{}
	}
	return Container{PodUID: strings.ReplaceAll(m[1]+m[2], "_", "-"), ID: m[3]}
}

// maxFile bounds the bytes read of a cgroup file, enough for a dozen paths.
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

// Container returns the container of a process. The error is [fs.ErrNotExist] if the process
// has ended.
func (p Proc) Container(pid int) (Container, error) {
	text, err := read(filepath.Join(p.Root, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return Container{}, fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	c, err := parse(string(text))
	if err != nil {
		return Container{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return c, nil
}

func read(path string) ([]byte, error) {
	text, err := hostfile.ReadAtMost(path, maxFile)
	if errors.Is(err, syscall.ESRCH) {
		return nil, fs.ErrNotExist
	}
	return text, err
}

// Opener is a process that has files open; Paths are as it sees them.
type Opener struct {
	PID     int
	Command string
	Paths   []string
}

// Openers returns the processes with an open file that has one of the texts in its path
// stands, such as /dev/nvidia: a driver container has its own /dev, below its
// root. hidden counts the processes that this one may not look into.
func (p Proc) Openers(texts []string) (found []Opener, hidden int, err error) {
	all, err := p.PIDs()
	for _, pid := range all {
		paths, fault := p.Open(pid, texts...)
		switch {
		case errors.Is(fault, fs.ErrNotExist), errors.Is(fault, syscall.ESRCH): // It has ended.
		case fault != nil:
			hidden++
		case len(paths) > 0:
			found = append(found, Opener{PID: pid, Command: p.Command(pid), Paths: paths})
		}
	}
	return found, hidden, err
}

// Command returns the command of a process, cut to 15 bytes; empty if it has ended.
func (p Proc) Command(pid int) string {
	name, _ := read(filepath.Join(p.Root, strconv.Itoa(pid), "comm"))
	return strings.TrimSpace(string(name))
}

// PIDs returns all processes, sorted.
func (p Proc) PIDs() (all []int, err error) {
	entries, err := os.ReadDir(p.Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			all = append(all, pid)
		}
	}
	slices.Sort(all)
	return all, nil
}

// Open returns the paths with one of the texts that a process has open, sorted. A descriptor may be closed between
// its listing and the look at it.
func (p Proc) Open(pid int, texts ...string) ([]string, error) {
	dir := filepath.Join(p.Root, strconv.Itoa(pid), "fd")
	descriptors, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, d := range descriptors {
		path, err := os.Readlink(filepath.Join(dir, d.Name()))
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		if err == nil && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(path, text) }) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}
