package enforce

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// shop is a node with a library, below a root that is not ours.
func shop(t *testing.T) (l *Limiter, root, state string) {
	t.Helper()
	root, state = t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "opt/libvgpu.so"), "version 1")
	l = New(Options{StateDir: state, Host: Host{Root: root}, Log: slog.New(slog.DiscardHandler)})
	c := config.Enforce{Memory: config.EnforcePreload, Compute: config.EnforcePreload, PreloadLibrary: "/opt/libvgpu.so"}
	if err := l.Configure(&c, &Facts{}); err != nil {
		t.Fatal(err)
	}
	return l, root, state
}

// TestMountsAndVariablesAreChecked: those of the node's files, and memory; and every variable.
func TestMountsAndVariablesAreChecked(t *testing.T) {
	l, _, state := shop(t)
	l.options.Host.OwnHook = "/var/lib/heddle/heddle-cdi-hook"
	edits, _, err := l.Edits(t.Context(), share("pod-a", gpuA, 60, 4096))
	if err != nil {
		t.Fatal(err)
	}
	if len(edits.Hooks) != 2 {
		t.Fatalf("hooks %+v", edits.Hooks)
	}
	for _, h := range edits.Hooks {
		if h.HookName != "createRuntime" || h.Path != l.options.Host.OwnHook {
			t.Errorf("hook %+v", h)
		}
	}
	if want := append([]string{"heddle-cdi-hook", "env"}, edits.Env...); !slices.Equal(want, edits.Hooks[1].Args) {
		t.Errorf("%q, want %q", edits.Hooks[1].Args, want)
	}
	args := strings.Join(edits.Hooks[0].Args, " ")
	for _, want := range []string{"heddle-cdi-hook mounts ", state + "/preload/ld.so.preload=/etc/ld.so.preload", "=/overrideEnv", "tmpfs=/usr/local/vgpu/region"} {
		if !strings.Contains(args, want) {
			t.Errorf("%q has no %q", args, want)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tree is the files below a directory with their modes.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if rel, _ := filepath.Rel(dir, path); rel != "." {
			list = append(list, info.Mode().String()+" "+rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// ownedAlways is what every container with the library gets.
var ownedAlways = []string{
	"CUDA_DISABLE_CONTROL=false", "CUDA_OVERSUBSCRIBE=false", "CUDA_REDIRECT=", "CUDA_TASK_PRIORITY=1",
	"ACTIVE_OOM_KILLER=true", "LIBVGPU_HOSTPID_BROKER=0", "LIBCUDA_LOG_LEVEL=2",
	"CUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/region/region.cache",
}

func TestPreloadEdits(t *testing.T) {
	l, _, state := shop(t)
	dir := filepath.Join(state, "preload")
	limit := share("pod-1", gpuA, 60, 4096)
	got, _, err := l.Edits(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "containers", "pod-1_c")
	want := &cdi.ContainerEdits{
		Env: append(slices.Clone(ownedAlways), "CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_SM_LIMIT_0=60",
			"CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=60", "GPU_CORE_UTILIZATION_POLICY=force"),
		Mounts: []*cdi.Mount{
			{HostPath: filepath.Join(dir, "lib/b19f8edae2ee6c22.so"), ContainerPath: "/usr/local/vgpu/libvgpu.so", Options: []string{"bind", "ro", "nosuid", "nodev"}},
			{HostPath: filepath.Join(dir, "ld.so.preload"), ContainerPath: "/etc/ld.so.preload", Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}},
			{HostPath: own, ContainerPath: "/overrideEnv", Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}},
			{HostPath: "tmpfs", ContainerPath: "/usr/local/vgpu/region", Type: "tmpfs", Options: []string{"rw", "nosuid", "nodev", "noexec", "mode=0777", "size=16m"}},
			{HostPath: "tmpfs", ContainerPath: "/tmp/vgpulock", Type: "tmpfs", Options: []string{"rw", "nosuid", "nodev", "noexec", "mode=0777", "size=16m"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("edits (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"drwxr-xr-x containers", "-rw-r--r-- containers/pod-1_c",
		"-rw-r--r-- ld.so.preload", "drwxr-xr-x lib", "-rwxr-xr-x lib/b19f8edae2ee6c22.so",
	}, tree(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{
		"ld.so.preload": "/usr/local/vgpu/libvgpu.so\n", "lib/b19f8edae2ee6c22.so": "version 1",
		"containers/pod-1_c": strings.Join(want.Env, "\n") + "\n",
	} {
		if got, _ := os.ReadFile(filepath.Join(dir, path)); string(got) != want {
			t.Errorf("%s has %q, not %q", path, got, want)
		}
	}
}

func TestPreloadEnvironment(t *testing.T) {
	both := Enforced{config.EnforcePreload, config.EnforcePreload}
	two := func(a, b int) *Limit {
		return &Limit{Policy: quota.FixedShare, GPUs: []GPU{
			{Share: allocation.Share{VCore: a, MemoryMiB: 1024}}, {Share: allocation.Share{VCore: b, MemoryMiB: 2048}},
		}}
	}
	policy := func(l *Limit, p quota.Policy) *Limit {
		l.Policy = p
		return l
	}
	for _, tt := range []struct {
		name  string
		limit *Limit
		by    Enforced
		want  []string
	}{
		{"fixed share", share("p", gpuA, 60, 4096), both, []string{
			"CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_SM_LIMIT_0=60",
			"CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=60", "GPU_CORE_UTILIZATION_POLICY=force",
		}},
		{"burst share", policy(share("p", gpuA, 60, 4096), quota.BurstShare), both, []string{
			"CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_SM_LIMIT_0=60",
			"CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=60", "GPU_CORE_UTILIZATION_POLICY=default",
		}},
		{"best effort has no limit, which is 100 and never 0", policy(share("p", gpuA, 0, 4096), quota.BestEffort), both, []string{
			"CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_SM_LIMIT_0=100",
			"CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=100", "GPU_CORE_UTILIZATION_POLICY=disable",
		}},
		{"two GPUs alike", two(50, 50), both, []string{
			"CUDA_DEVICE_MEMORY_LIMIT_0=1024m", "CUDA_DEVICE_SM_LIMIT_0=50",
			"CUDA_DEVICE_MEMORY_LIMIT_1=2048m", "CUDA_DEVICE_SM_LIMIT_1=50",
			"CUDA_DEVICE_MEMORY_LIMIT=1024m", "CUDA_DEVICE_SM_LIMIT=50", "GPU_CORE_UTILIZATION_POLICY=force",
		}},
		{"two GPUs with different compute", two(70, 30), both, []string{
			"CUDA_DEVICE_MEMORY_LIMIT_0=1024m", "CUDA_DEVICE_SM_LIMIT_0=70",
			"CUDA_DEVICE_MEMORY_LIMIT_1=2048m", "CUDA_DEVICE_SM_LIMIT_1=30",
			"CUDA_DEVICE_MEMORY_LIMIT=1024m", "CUDA_DEVICE_SM_LIMIT=30", "GPU_CORE_UTILIZATION_POLICY=force",
		}},
		{"compute is another's", share("p", gpuA, 60, 4096), Enforced{Memory: config.EnforcePreload}, []string{
			"CUDA_DEVICE_MEMORY_LIMIT_0=4096m", "CUDA_DEVICE_SM_LIMIT_0=100",
			"CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=100", "GPU_CORE_UTILIZATION_POLICY=disable",
		}},
		{"memory is another's", share("p", gpuA, 60, 4096), Enforced{Compute: config.EnforcePreload}, []string{
			"CUDA_DEVICE_MEMORY_LIMIT_0=", "CUDA_DEVICE_SM_LIMIT_0=60",
			"CUDA_DEVICE_MEMORY_LIMIT=", "CUDA_DEVICE_SM_LIMIT=60", "GPU_CORE_UTILIZATION_POLICY=force",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.limit.By = tt.by
			if diff := cmp.Diff(slices.Concat(ownedAlways, tt.want), preloadEnv(tt.limit)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestDocumentedVariables: every variable of the documented table is set for every
// GPU, and nothing else is. What is not set is what the pod sets.
func TestDocumentedVariables(t *testing.T) {
	text, err := os.ReadFile("../../docs/concepts/enforcers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| variable |")
	table, _, _ = strings.Cut(table, "\n\n")
	limit := share("p", gpuA, 60, 4096)
	limit.GPUs = append(limit.GPUs, limit.GPUs[0])
	limit.By = Enforced{config.EnforcePreload, config.EnforcePreload}
	var documented, set []string
	for line := range strings.SplitSeq(table, "\n") {
		line, _, _ = strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for i, word := range strings.Split(line, "`") {
			name, each := strings.CutSuffix(word, "_<i>")
			switch {
			case i%2 == 0: // Between the names.
			case each:
				documented = append(documented, name+"_0", name+"_1")
			default:
				documented = append(documented, name)
			}
		}
	}
	for _, e := range preloadEnv(limit) {
		name, _, _ := strings.Cut(e, "=")
		set = append(set, name)
	}
	slices.Sort(documented)
	slices.Sort(set)
	if diff := cmp.Diff(documented, set); diff != "" {
		t.Errorf("(-documented +set):\n%s", diff)
	}
}

func TestPreloadVersions(t *testing.T) {
	l, root, state := shop(t)
	dir := filepath.Join(state, "preload")
	library := filepath.Join(root, "opt/libvgpu.so")
	versions := func() []string {
		names, _ := filepath.Glob(filepath.Join(dir, "lib/*"))
		for i := range names {
			content, _ := os.ReadFile(names[i])
			names[i] = string(content)
		}
		slices.Sort(names)
		return names
	}
	start := func(pod string) Limit {
		t.Helper()
		limit := share(pod, gpuA, 60, 4096)
		_, by, err := l.Edits(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		limit.By = by
		return *limit
	}
	keep := func(live ...Limit) {
		t.Helper()
		if err := l.Keep(func() []Limit { return live }); err != nil {
			t.Fatal(err)
		}
	}
	one := start("one")
	mapped, err := os.Open(filepath.Join(dir, "lib/b19f8edae2ee6c22.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	before, _ := mapped.Stat()

	write(t, library, "version 2, longer")
	two := start("two")
	keep(one, two)
	if diff := cmp.Diff([]string{"version 1", "version 2, longer"}, versions()); diff != "" {
		t.Errorf("a version that a container has is gone (-want +got):\n%s", diff)
	}
	if after, _ := mapped.Stat(); !after.ModTime().Equal(before.ModTime()) {
		t.Error("a version was written while it may be mapped")
	}
	keep(two)
	if _, err := os.Stat(filepath.Join(dir, "containers/one_c")); err == nil {
		t.Error("files of a container that is gone are still there")
	}

	starts := share("three", gpuA, 60, 4096)
	if _, _, err := l.Edits(t.Context(), starts); err != nil {
		t.Fatal(err)
	}
	keep(two, *starts)
	if _, err := os.Stat(filepath.Join(dir, "containers/three_c")); err != nil {
		t.Errorf("files of a container that just started: %v", err)
	}
	keep()
	if diff := cmp.Diff([]string{"version 2, longer"}, versions()); diff != "" {
		t.Errorf("without containers (-want +got):\n%s", diff)
	}
}

func TestPreloadRejects(t *testing.T) {
	l, root, _ := shop(t)
	if err := os.Remove(filepath.Join(root, "opt/libvgpu.so")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Edits(t.Context(), share("p", gpuA, 60, 4096)); err == nil {
		t.Error("a container starts without the library")
	}
	library, err := os.Create(filepath.Join(root, "opt/libvgpu.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	if err := library.Truncate(maxLibrary + 1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Edits(t.Context(), share("p", gpuA, 60, 4096)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a huge library: %v", err)
	}
	for name, limit := range map[string]*Limit{
		"pod out of its directory": share("../p", gpuA, 60, 4096),
		"no pod":                   share("", gpuA, 60, 4096),
		"GPU out of its directory": {
			Pod: "p", Container: "c", GPUs: []GPU{{Share: allocation.Share{UUID: "../../etc", VCore: 1, MemoryMiB: 1}}},
		},
		"unknown memory": share("p", gpuA, 60, 0),
		"no GPUs":        {Pod: "p", Container: "c"},
	} {
		if _, _, err := l.Edits(t.Context(), limit); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
