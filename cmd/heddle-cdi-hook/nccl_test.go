package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNCCL: variables go behind what an image has, and never through a link, which may
// lead to another's file.
func TestNCCL(t *testing.T) {
	const line = "NCCL_IB_HCA==mlx5_0:1"
	for name, tt := range map[string]struct {
		prepare func(etc string) error
		file    string // below the root; nccl.conf in etc unless set
		want    string
	}{
		"none":        {prepare: func(etc string) error { return os.Mkdir(etc, 0o750) }, want: "\n" + line + "\n"},
		"its own":     {prepare: own, want: "NCCL_DEBUG=INFO\n" + line + "\n"},
		"no etc":      {prepare: func(string) error { return nil }},
		"a link":      {prepare: func(etc string) error { return linked(etc, "nccl.conf", "../elsewhere") }, file: "elsewhere", want: "-"},
		"a way out":   {prepare: func(etc string) error { return linked(etc, "nccl.conf", "/elsewhere") }, file: "elsewhere", want: "-"},
		"linked etc":  {prepare: func(etc string) error { return os.Symlink(filepath.Dir(etc), etc) }, file: "nccl.conf"},
		"a directory": {prepare: func(etc string) error { return os.MkdirAll(filepath.Join(etc, "nccl.conf"), 0o750) }, file: "none"},
	} {
		t.Run(name, func(t *testing.T) {
			proc, bundle := t.TempDir(), t.TempDir()
			root := filepath.Join(proc, "7", "root", bundle, "rootfs")
			if err := os.MkdirAll(root, 0o750); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{
				filepath.Join(bundle, "config.json"): `{"root": {"path": "rootfs"}}`, filepath.Join(root, "elsewhere"): "-",
			} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := tt.prepare(filepath.Join(root, "etc")); err != nil {
				t.Fatal(err)
			}
			state := fmt.Sprintf(`{"pid": 7, "bundle": %q}`, bundle)
			if err := addNCCL(proc, strings.NewReader(state), []string{line}); err != nil {
				t.Fatal(err)
			}
			file := tt.file
			if file == "" {
				file = "etc/nccl.conf"
			}
			got, err := os.ReadFile(filepath.Join(root, file))
			if string(got) != tt.want || err != nil && tt.want != "" {
				t.Errorf("%s has %q, %v; want %q", file, got, err, tt.want)
			}
		})
	}
	for _, bad := range []string{"NCCL_IB_HCA", "=x", "NCCL_IB_HCA=x\nNCCL_DEBUG=INFO"} {
		if err := addNCCL("/proc", strings.NewReader(`{"pid": 7, "bundle": "/"}`), []string{bad}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func own(etc string) error {
	if err := os.Mkdir(etc, 0o750); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(etc, "nccl.conf"), []byte("NCCL_DEBUG=INFO"), 0o600)
}

func linked(etc, name, target string) error {
	if err := os.Mkdir(etc, 0o750); err != nil {
		return err
	}
	return os.Symlink(target, filepath.Join(etc, name))
}
