package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const controller = "dmem"

// limitMemory limits regions of device memory, "drm/0000:03:00.0/vram=BYTES", for the cgroup of
// the container that the runtime's state names (cgroup v2, Linux 6.14: dmem.max takes "region
// bytes"). The controller is off in every cgroup until it is enabled from the root down.
func limitMemory(proc, cgroups string, stdin io.Reader, limits []string) error {
	c, err := readState(stdin)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(c.PID), "cgroup"))
	if err != nil {
		return fmt.Errorf("cgroup of the container: %w", err)
	}
	path, ok := unified(string(text))
	if !ok {
		return fmt.Errorf("the container's process has no cgroup v2: %q", text)
	}
	dir := cgroups
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if err := enable(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, name)
	}
	for _, limit := range limits {
		region, bytes, _ := strings.Cut(limit, "=")
		if _, err := strconv.ParseUint(bytes, 10, 63); err != nil {
			return fmt.Errorf("limit %q is not region=bytes", limit)
		}
		if err := write(filepath.Join(dir, controller+".max"), region+" "+bytes); err != nil {
			return fmt.Errorf("limit the memory of %s: %w", region, err)
		}
	}
	return nil
}

// unified returns the path of a process's cgroup of version 2, which is not the root.
func unified(text string) (path string, ok bool) {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			// Cleaned from the root it leads nowhere else.
			path = filepath.Clean("/" + path)
			return path, path != "/"
		}
	}
	return "", false
}

// enable has the children of a cgroup have the controller.
func enable(dir string) error {
	if err := write(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller); err != nil {
		return fmt.Errorf("turn on the %s controller: %w", controller, err)
	}
	return nil
}

// write writes to a file of the kernel, which must be there.
func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if end := f.Close(); err == nil {
		err = end
	}
	return err
}
