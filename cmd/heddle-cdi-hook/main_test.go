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

// TestCopyFile: the same bytes leave the file as it is; others come as another file, so
// that who has the old one mapped keeps it; and nothing else is in the directory.
func TestCopyFile(t *testing.T) {
	image, node := t.TempDir(), t.TempDir()
	from, to := filepath.Join(image, "libvgpu.so"), filepath.Join(node, "library", "libvgpu.so")
	deliver := func(content string) os.FileInfo {
		t.Helper()
		err := errors.Join(os.WriteFile(from, []byte(content), 0o600), copyFile([]string{from, to}))
		got, readErr := os.ReadFile(to)
		info, statErr := os.Stat(to)
		if err = errors.Join(err, readErr, statErr); err != nil || string(got) != content {
			t.Fatalf("%q is delivered, error %v", got, err)
		}
		return info
	}
	first := deliver("one")
	if first.Mode().Perm() != 0o755 {
		t.Errorf("mode %v", first.Mode())
	}
	if again := deliver("one"); !os.SameFile(first, again) || !again.ModTime().Equal(first.ModTime()) {
		t.Error("the same bytes were written again")
	}
	if second := deliver("two"); os.SameFile(first, second) {
		t.Error("the file was written over")
	}
	if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestCopyFileRejects(t *testing.T) {
	dir := t.TempDir()
	empty, large := filepath.Join(dir, "empty"), filepath.Join(dir, "large")
	err := errors.Join(os.WriteFile(empty, nil, 0o600), os.WriteFile(large, nil, 0o600), os.Truncate(large, maxCopy+1))
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "to")
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"nothing", "want a file of the image", nil},
		{"no target", "want a file of the image", []string{empty}},
		{"no such file", "in the image: open " + dir + "/none", []string{dir + "/none", to}},
		{"a directory", dir + ": is a directory", []string{dir, to}},
		{"a device", "/dev/zero: more than 67108864 bytes", []string{"/dev/zero", to}},
		{"empty", "empty is empty", []string{empty, to}},
		{"large", "large: more than 67108864 bytes", []string{large, to}},
		{"nowhere", "to the node:", []string{"mounts.go", empty + "/to"}},
	} {
		if err := copyFile(tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is there: %v", err)
	}
}

// TestCheckEnv: what the container gets by the runtime's bundle, in the runtime's order.
func TestCheckEnv(t *testing.T) {
	dir := t.TempDir()
	state := fmt.Sprintf(`{"pid": 7, "bundle": %q}`, dir)
	for name, tt := range map[string]struct{ env, want, err string }{
		"heddle's":              {`"PATH=/bin", "LIMIT=30", "REDIRECT="`, "LIMIT=30 REDIRECT=", ""},
		"a longer name":         {`"LIMIT_0=100", "LIMIT=30"`, "LIMIT=30", ""},
		"twice the same":        {`"LIMIT=30", "LIMIT=30"`, "LIMIT=30", ""},
		"the pod's":             {`"LIMIT=100", "REDIRECT=/other.so"`, "LIMIT=30 REDIRECT=", "sets LIMIT, REDIRECT, which"},
		"the pod's before it":   {`"LIMIT=100", "LIMIT=30"`, "LIMIT=30", ""},
		"the pod's after it":    {`"LIMIT=30", "LIMIT=100"`, "LIMIT=30", "sets LIMIT, which"},
		"of the same beginning": {`"LIMIT=300"`, "LIMIT=30", "sets LIMIT, which"},
		"none":                  {``, "LIMIT=30", "sets LIMIT, which"},
		"no variable":           {``, "LIMIT", `"LIMIT" is not NAME=VALUE`},
		"no name":               {``, "=30", `"=30" is not NAME=VALUE`},
	} {
		bundle := `{"root": {"path": "rootfs"}, "process": {"env": [` + tt.env + `]}}`
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(bundle), 0o600); err != nil {
			t.Fatal(err)
		}
		err := checkEnv(strings.NewReader(state), strings.Fields(tt.want))
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
	}
	for _, bad := range []string{"{", `{"bundle": "/nowhere"}`} {
		if err := checkEnv(strings.NewReader(bad), nil); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

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
