package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLimitMemory on files in place of the kernel's: what is written where.
func TestLimitMemory(t *testing.T) {
	const region = "drm/0000:03:00.0/vram"
	for name, tt := range map[string]struct {
		cgroup string // of the container's process
		on     string // what the pod's cgroup has on
		state  string
		limit  string
		want   string // in dmem.max; else the error
		err    string
	}{
		"turned on":      {"0::/kubepods.slice/pod7/app\n", "cpu memory", `{"pid": 7}`, region + "=1073741824", region + " 1073741824", ""},
		"on already":     {"12:cpu:/x\n0::/kubepods.slice/pod7/app\n", "cpu dmem", `{"pid": 7}`, region + "=0", region + " 0", ""},
		"cgroup v1":      {"12:cpu:/kubepods/pod7/app\n", "", `{"pid": 7}`, region + "=1", "", "has no cgroup v2"},
		"the root":       {"0::/\n", "", `{"pid": 7}`, region + "=1", "", "has no cgroup v2"},
		"leads up":       {"0::/../../kubepods.slice/pod7/app\n", "cpu", `{"pid": 7}`, region + "=2", region + " 2", ""},
		"not there":      {"0::/gone\n", "", `{"pid": 7}`, region + "=1", "", "limit the memory of " + region},
		"no number":      {"0::/kubepods.slice/pod7/app\n", "", `{"pid": 7}`, region + "=max", "", "is not region=bytes"},
		"no limit":       {"0::/kubepods.slice/pod7/app\n", "", `{"pid": 7}`, region, "", "is not region=bytes"},
		"no such pid":    {"0::/x\n", "", `{"pid": 8}`, region + "=1", "", "cgroup of the container"},
		"no state":       {"0::/x\n", "", `{`, region + "=1", "", "the runtime's state"},
		"kernel without": {"0::/without/app\n", "", `{"pid": 7}`, region + "=1", "", "turn on the dmem controller"},
	} {
		t.Run(name, func(t *testing.T) {
			proc, cgroups := t.TempDir(), t.TempDir()
			put := func(path, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			put(filepath.Join(proc, "7", "cgroup"), tt.cgroup)
			pod := filepath.Join(cgroups, "kubepods.slice", "pod7")
			for dir, on := range map[string]string{cgroups: "cpu dmem", filepath.Dir(pod): "cpu dmem", pod: tt.on} {
				put(filepath.Join(dir, "cgroup.subtree_control"), on)
			}
			put(filepath.Join(cgroups, "without", "cgroup.procs"), "")
			file := filepath.Join(pod, "app", "dmem.max")
			put(file, "")
			err := limitMemory(proc, cgroups, strings.NewReader(tt.state), []string{tt.limit})
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if got, _ := os.ReadFile(file); string(got) != tt.want {
				t.Errorf("dmem.max %q, want %q", got, tt.want)
			}
			on, _ := os.ReadFile(filepath.Join(pod, "cgroup.subtree_control"))
			if turned := strings.HasPrefix(string(on), "+dmem"); turned != strings.Contains(tt.cgroup, "0::/kubepods.slice/pod7") && !strings.Contains(tt.cgroup, "..") {
				t.Errorf("the pod's cgroup has %q", on)
			}
		})
	}
}
