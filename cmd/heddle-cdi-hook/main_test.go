package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
