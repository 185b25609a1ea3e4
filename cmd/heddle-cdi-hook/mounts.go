package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// memory in place of a path on the node is memory of the container's own.
const memory = "tmpfs"

// checkMounts reads the state that the runtime passes, and reports a mount that is
// not what the container sees at its path, or that another mount is in.
func checkMounts(proc string, stdin io.Reader, mounts []string) error {
	c, err := readContainer(stdin)
	if err != nil {
		return err
	}
	process, root := c.root(proc)
	inside, err := readMounts(filepath.Join(process, "mountinfo"))
	if err != nil {
		return err
	}
	outside, err := readMounts(filepath.Join(proc, "self", "mountinfo"))
	if err != nil {
		return err
	}
	var hidden []string
	for _, m := range mounts {
		host, path, ok := strings.Cut(m, "=")
		if !ok {
			return fmt.Errorf("mount %q is not /on/the/node=/in/the/container", m)
		}
		// As in the container: links do not lead out of its root. None of its
		// processes runs that could change them meanwhile.
		found, err := securejoin.SecureJoin(root, path)
		if err != nil {
			return fmt.Errorf("%s in the container: %w", path, err)
		}
		own, err := isMount(found, host, outside)
		if err != nil {
			return err
		}
		// A mount in it needs no link: it hides the socket of MPS, or the region's file.
		below := strings.TrimPrefix(found, filepath.Join(process, "root")) + "/"
		if !own || slices.ContainsFunc(inside, func(m mountPoint) bool { return strings.HasPrefix(m.path, below) }) {
			hidden = append(hidden, path)
		}
	}
	if len(hidden) > 0 {
		return fmt.Errorf("a volume of the pod, or a link in it, hides %s, which the limits of the pod's share need: "+
			"mount it elsewhere", strings.Join(hidden, ", "))
	}
	return nil
}

// isMount reports whether a path is the file of the node, or memory that is mounted in the
// container alone: a volume of the pod, in memory too, is on the node's list of mounts.
func isMount(path, host string, outside []mountPoint) (bool, error) {
	if host == memory {
		var fs unix.Statfs_t
		var file unix.Stat_t
		if unix.Statfs(path, &fs) != nil || unix.Stat(path, &file) != nil || fs.Type != unix.TMPFS_MAGIC {
			return false, nil //nolint:nilerr // What is not there is hidden.
		}
		device := fmt.Sprintf("%d:%d", unix.Major(file.Dev), unix.Minor(file.Dev))
		return !slices.ContainsFunc(outside, func(m mountPoint) bool { return m.device == device }), nil
	}
	want, err := os.Stat(host) //nolint:gosec // heddle's own CDI spec names it.
	if err != nil {
		return false, fmt.Errorf("mount of heddle: %w", err)
	}
	got, err := os.Stat(path) //nolint:gosec // It is within the container's root.
	return err == nil && os.SameFile(got, want), nil
}

// mountPoint is a mount: the device, 8:1, and where it is.
type mountPoint struct{ device, path string }

// readMounts reads a mountinfo file (proc_pid_mountinfo(5)). What it escapes in paths is
// in no path of heddle's, and the container's root is the runtime's.
func readMounts(file string) ([]mountPoint, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	defer func() { _ = f.Close() }()
	var all []mountPoint
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			all = append(all, mountPoint{fields[2], fields[4]})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	return all, nil
}

// checkEnv reads the state that the runtime passes, and reports variables that the container has
// in place of those of CDI. CRI-O before its pull request 9292 (June 2025) lets the pod's and the
// image's win.
func checkEnv(stdin io.Reader, variables []string) error {
	c, err := readContainer(stdin)
	if err != nil {
		return err
	}
	var replaced []string
	for _, v := range variables {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return fmt.Errorf("%q is not NAME=VALUE", v)
		}
		// Of several of one name the last holds (runc, libcontainer/env.go, prepareEnv).
		got := ""
		for _, e := range c.Config.Process.Env {
			if strings.HasPrefix(e, name+"=") {
				got = e
			}
		}
		if got != v {
			replaced = append(replaced, name)
		}
	}
	if len(replaced) > 0 {
		return fmt.Errorf("the pod or its image sets %s, which the limits of the pod's share need, and this container "+
			"runtime lets it win over CDI: do not set it, or update CRI-O", strings.Join(replaced, ", "))
	}
	return nil
}
