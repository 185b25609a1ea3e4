//go:build e2e && linux

package devices

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/nvidia"
	"github.com/heddle-dev/heddle/test/programtest"
)

// nvidiaProgram is one of NVIDIA's own programs, of the module in test/peers/nvidia.
func nvidiaProgram(t *testing.T, name string) string {
	t.Helper()
	if dir := cluster.Prebuilt(); dir != "" {
		return filepath.Join(dir, "peers", name)
	}
	b, err := builds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.dir, name)
	if _, err := os.Stat(file); err == nil {
		return file
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../../peers/nvidia", "-ldflags", "-s -w", "-o", file,
		"github.com/NVIDIA/k8s-device-plugin/cmd/"+name)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// nvidia is NVIDIA's k8s-device-plugin on a stand-in for the driver, which has the
// machine's GPUs. It has the device nodes that heddle allocates. It is not started.
func (r *rig) nvidia(t *testing.T, config string) *process {
	t.Helper()
	m := r.machine(t)
	root := filepath.Join(r.dir, "driver")
	d, err := nvidia.Install(t.Context(), root, "usr/lib/"+nvidia.Triple(), driverBefore)
	if err != nil {
		t.Fatal(err)
	}
	control := nvidia.Of(m)
	control.Kernel = driverBefore
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range control.GPUs {
		g := &control.GPUs[i]
		g.Minor = m.GPUs[i].Index
		var node unix.Stat_t
		if err := unix.Stat(filepath.Join(r.dir, "gpus", g.UUID), &node); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, "dev", fmt.Sprint("nvidia", g.Minor))
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(node.Rdev)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Set(control); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(r.dir, "nvidia.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return r.another(t, nvidiaProgram(t, "nvidia-device-plugin"), "",
		"--config-file", file, "--driver-root", root, "--driver-root-ctr-path", root, "--dev-root", root,
		"--device-discovery-strategy", "nvml", "--pass-device-specs")
}

// TestLabelsBesideNVIDIA: heddle-feature-discovery writes what NVIDIA's gpu-feature-discovery writes
// of the same driver and sysfs, value for value.
func TestLabelsBesideNVIDIA(t *testing.T) {
	theirs := nvidiaProgram(t, "gpu-feature-discovery")
	b, err := builds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := installDriver(t, t.TempDir())
	for _, g := range n.control.GPUs {
		// What theirs looks for capabilities in, and what it takes memory regions from.
		n.tree.Raw(filepath.Join("sys/bus/pci/devices", g.PCI, "config"), string(make([]byte, 256)))
		n.tree.Write(filepath.Join("sys/bus/pci/devices", g.PCI, "resource"), strings.Repeat("0x0000000000000000 ", 3))
	}
	cut := func(g *nvidia.GPU, instances int) { g.MIG = 1 + instances }
	for _, tt := range []struct {
		name string
		edit func(i int, g *nvidia.GPU)
		// invalid is a node whose GPUs the strategy single does not fit.
		invalid bool
	}{
		{name: "whole GPUs", edit: func(int, *nvidia.GPU) {}},
		{name: "NVLink fabric", edit: func(_ int, g *nvidia.GPU) { g.Fabric, g.Clique = nvidia.Completed, 7 }},
		{name: "MIG", edit: func(_ int, g *nvidia.GPU) { cut(g, 7) }},
		{name: "MIG on half", edit: func(i int, g *nvidia.GPU) {
			if i < 4 {
				cut(g, 7)
			}
		}, invalid: true},
		{name: "MIG without instances", edit: func(_ int, g *nvidia.GPU) { cut(g, 0) }, invalid: true},
		{name: "one without instances", edit: func(i int, g *nvidia.GPU) {
			cut(g, 7)
			if i == 2 {
				cut(g, 0)
			}
		}, invalid: true},
	} {
		for _, strategy := range []string{"none", "single", "mixed"} {
			t.Run(tt.name+", "+strategy, func(t *testing.T) {
				control := n.control
				control.GPUs = slices.Clone(n.control.GPUs)
				for i := range control.GPUs {
					tt.edit(i, &control.GPUs[i])
				}
				if err := n.Set(control); err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				// It reads /sys and finds NVML by the loader.
				want := writes(t, dir, "LD_LIBRARY_PATH="+filepath.Join(n.Root, "usr/lib", nvidia.Triple()),
					"unshare", "--mount", "sh", "-ec", `mount --bind "$1" /sys; shift; exec "$@"`, "sh", n.tree.Sys(),
					theirs, "--oneshot", "--no-timestamp", "--use-node-feature-api=false", "--mig-strategy", strategy, "--output-file")
				config := programtest.Config(t, "migStrategy: "+strategy+"\n")
				got := writes(t, dir, "", append([]string{b.node, labelerDaemon, "--oneshot", "--node-name", "n", "--config", config},
					append(n.flags(), "--output-file")...)...)
				if tt.invalid && strategy == "single" {
					// Theirs is an empty text, of a GPU that it calls MIG-INVALID.
					want["nvidia.com/gpu.sharing-strategy"] = "none"
				}
				compareLabels(t, want, got)
			})
		}
	}
}

// TestHardwareLabels: the same on this machine's driver.
func TestHardwareLabels(t *testing.T) {
	r, _ := hardwareRig(t, "hwlabels", "")
	b, err := builds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs := nvidiaProgram(t, "gpu-feature-discovery")
	want := writes(t, t.TempDir(), "", theirs, "--oneshot", "--no-timestamp", "--use-node-feature-api=false", "--output-file")
	got := writes(t, t.TempDir(), "", b.node, labelerDaemon, "--oneshot", "--node-name", r.Node(), "--output-file")
	compareLabels(t, want, got)
}

// writes are the labels that a program writes to the file that its last flag names.
func writes(t *testing.T, dir, env string, args ...string) map[string]string {
	t.Helper()
	file := filepath.Join(dir, filepath.Base(args[0]))
	cmd := exec.CommandContext(t.Context(), args[0], append(args[1:], file)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if env != "" {
		cmd.Env = append(cmd.Env, env)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, tail(string(out), 1000))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			labels[key] = value
		}
	}
	return labels
}

// compareLabels reports what differs. heddle has labels of its own: those of HCAs and of the fabric, the
// driver's version once more in one label.
func compareLabels(t *testing.T, theirs, heddles map[string]string) {
	t.Helper()
	maps.DeleteFunc(heddles, func(key, _ string) bool {
		return strings.HasPrefix(key, "heddle.dev/") || key == "nvidia.com/gpu.driver-version"
	})
	if diff := cmp.Diff(theirs, heddles); diff != "" {
		t.Errorf("labels differ (-gpu-feature-discovery +heddle):\n%s", diff)
	}
	t.Logf("%d labels", len(theirs))
}
