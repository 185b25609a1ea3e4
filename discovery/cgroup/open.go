package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

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
	all, err := os.ReadDir(p.Root)
	if err != nil {
		return nil, 0, fmt.Errorf("list processes: %w", err)
	}
	for _, entry := range all {
		pid, notPID := strconv.Atoi(entry.Name())
		if notPID != nil {
			continue
		}
		paths, fault := p.open(pid, texts)
		switch {
		case errors.Is(fault, fs.ErrNotExist), errors.Is(fault, syscall.ESRCH): // It has ended.
		case fault != nil:
			hidden++
		case len(paths) > 0:
			// A process that ends now has no name any more.
			name, _ := read(filepath.Join(p.Root, entry.Name(), "comm"))
			found = append(found, Opener{PID: pid, Command: strings.TrimSpace(string(name)), Paths: paths})
		}
	}
	slices.SortFunc(found, func(a, b Opener) int { return cmp.Compare(a.PID, b.PID) })
	return found, hidden, nil
}

// open returns the paths that a process has open, sorted. A descriptor may be closed
// between its listing and the look at it.
func (p Proc) open(pid int, texts []string) ([]string, error) {
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
