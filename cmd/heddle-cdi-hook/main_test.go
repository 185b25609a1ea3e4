package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// noMounts are the mounts of process 7 and of the hook itself.
func noMounts(t *testing.T, proc string) {
	t.Helper()
	for _, process := range []string{"7", "self"} {
		listMounts(t, proc, process)
	}
}

// listMounts are the mounts of a process, "0:25 /path" each.
func listMounts(t *testing.T, proc, process string, mounts ...string) {
	t.Helper()
	text := ""
	for _, m := range mounts {
		device, path, _ := strings.Cut(m, " ")
		text += "36 35 " + device + " / " + path + " rw,noatime master:1 - tmpfs tmpfs rw\n"
	}
	dir := filepath.Join(proc, process)
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestMountsInAndOverMemory: a volume of the pod in heddle's directory hides what the library
// or CUDA look for there, and so does one in place of the memory, also if it is memory too.
func TestMountsInAndOverMemory(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "hook") //nolint:usetesting // It must be memory.
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var file unix.Stat_t
	if err := unix.Stat(dir, &file); err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("%d:%d", unix.Major(file.Dev), unix.Minor(file.Dev))
	proc, bundle := filepath.Join(dir, "proc"), filepath.Join(dir, "bundle")
	root := filepath.Join(proc, "7", "root", "rootfs")
	for _, d := range []string{bundle, filepath.Join(root, "region"), filepath.Join(root, "pipe"), filepath.Join(dir, "pipe")} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"root": {"path": "/rootfs"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	state := fmt.Sprintf(`{"pid": 7, "bundle": %q}`, bundle)
	for _, tt := range []struct {
		name            string
		inside, outside []string
		mount, want     string
	}{
		{"memory", []string{device + " /rootfs/region"}, []string{"8:1 /"}, "tmpfs=/region", ""},
		{"a mount beside it", []string{"8:1 /rootfs/region2", "8:1 /other/region/x"}, nil, "tmpfs=/region", ""},
		{"a file in it", []string{device + " /rootfs/region", "8:1 /rootfs/region/region.cache"}, nil, "tmpfs=/region", "hides /region"},
		{"a volume in memory", nil, []string{device + " /var/lib/kubelet/pods/x"}, "tmpfs=/region", "hides /region"},
		{"nothing is there", nil, nil, "tmpfs=/away", "hides /away"},
		{"the node's directory", nil, nil, root + "/pipe=/pipe", ""},
		{"a socket of it is hidden", []string{"8:1 /rootfs/pipe/control"}, nil, root + "/pipe=/pipe", "hides /pipe"},
	} {
		listMounts(t, proc, "7", tt.inside...)
		listMounts(t, proc, "self", tt.outside...)
		err := checkMounts(proc, strings.NewReader(state), []string{tt.mount})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestCheckMounts with hard links in place of bind mounts: both are one file.
func TestCheckMounts(t *testing.T) {
	dir := t.TempDir()
	proc, bundle, host := filepath.Join(dir, "proc"), filepath.Join(dir, "bundle"), filepath.Join(dir, "list")
	root := filepath.Join(proc, "7", "root", bundle, "rootfs")
	for _, d := range []string{bundle, filepath.Join(root, "etc"), filepath.Join(root, "x")} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(bundle, "config.json"), `{"root": {"path": "rootfs"}}`)
	noMounts(t, proc)
	write(host, "libvgpu.so")
	state := fmt.Sprintf(`{"pid": 7, "bundle": %q}`, bundle)
	inside := filepath.Join(root, "etc", "ld.so.preload")
	if err := os.Link(host, inside); err != nil {
		t.Fatal(err)
	}
	// The container's own /etc, and links that are absolute or lead up.
	for link, target := range map[string]string{"absolute": "/etc", "up": "../../../../etc"} {
		if err := os.Symlink(target, filepath.Join(root, "x", link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/etc/ld.so.preload", "/x/absolute/ld.so.preload", "/x/up/ld.so.preload"} {
		if err := checkMounts(proc, strings.NewReader(state), []string{host + "=" + path}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.Remove(inside); err != nil {
		t.Fatal(err)
	}
	for _, hides := range []string{"", "another file"} {
		if hides != "" {
			write(inside, hides)
		}
		err := checkMounts(proc, strings.NewReader(state), []string{host + "=/etc/ld.so.preload"})
		if err == nil || !strings.Contains(err.Error(), "hides /etc/ld.so.preload") {
			t.Errorf("hidden by %q: %v", hides, err)
		}
	}
	for name, bad := range map[string]struct{ state, mount string }{
		"state":  {"{", host + "=/etc"},
		"bundle": {`{"pid": 7, "bundle": "/nowhere"}`, host + "=/etc"},
		"mount":  {state, "/etc"},
		"source": {state, "/nowhere=/etc"},
	} {
		if err := checkMounts(proc, strings.NewReader(bad.state), []string{bad.mount}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
