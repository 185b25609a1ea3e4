//go:build cgo && linux

package nvml

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// node is a machine with one GPU and its driver below a directory.
type node struct {
	t      *testing.T
	dir    string
	driver *nvidia.Driver
	gpu    machine.GPU
}

// install puts the libraries into a folder of the driver's root.
func install(t *testing.T, folder string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), gpu: machine.GPU{UUID: "GPU-5b8b4a5e-0000-4000-8000-000000000001", PCI: "0000:1b:00.0"}}
	d, err := nvidia.Install(t.Context(), filepath.Join(n.dir, driverContainer), folder, "550.54.15")
	if err != nil {
		t.Fatal(err)
	}
	n.driver = d
	err = d.Set(nvidia.Control{Kernel: "550.54.15", GPUs: []nvidia.GPU{
		{UUID: n.gpu.UUID, PCI: n.gpu.PCI, Name: "NVIDIA H100", MemoryMiB: 81559, MIG: -1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mknod makes device nodes.
func (n *node) mknod(dev string, names ...string) {
	n.t.Helper()
	for i, name := range names {
		path := filepath.Join(n.dir, dev, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			n.t.Fatal(err)
		}
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, uint32(3+i))))
		if errors.Is(err, unix.EPERM) {
			n.t.Skip("making device nodes needs root")
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// file makes a program, or whatever else has a name.
func (n *node) file(name string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o700)); err != nil {
		n.t.Fatal(err)
	}
}

// link makes links to files of another folder of the driver, by absolute paths.
func (n *node) link(folder, to string, names ...string) {
	n.t.Helper()
	for _, name := range names {
		path := filepath.Join(n.driver.Root, folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(filepath.Join("/", to, name), path)); err != nil {
			n.t.Fatal(err)
		}
	}
}

func (n *node) options() gpu.Options {
	return gpu.Options{HostRoot: n.dir, DevRoot: filepath.Join(n.dir, "host/dev")}
}

// asked is what a process is to generate, in its environment.
const asked = "HEDDLE_TEST_GENERATE"

type question struct {
	Options gpu.Options     `json:"options"`
	Machine machine.Machine `json:"machine"`
}

// generate asks another process: each keeps the first driver that it loads.
func (n *node) generate(o gpu.Options) *gpu.Edits {
	n.t.Helper()
	text, err := json.Marshal(question{o, machine.Machine{GPUs: []machine.GPU{n.gpu}}}) //nolint:musttag // This program reads it again.
	if err != nil {
		n.t.Fatal(err)
	}
	child := exec.CommandContext(n.t.Context(), os.Args[0], "-test.run=^TestGenerateForAnother$", "-test.v")
	child.Env = append(os.Environ(), asked+"="+string(text))
	out, err := child.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if answer, ok := strings.CutPrefix(line, asked+"="); ok {
			edits := &gpu.Edits{}
			if err := json.Unmarshal([]byte(answer), edits); err != nil { //nolint:musttag // This program reads it again.
				n.t.Fatal(err)
			}
			return edits
		}
	}
	n.t.Fatalf("no answer: %s", out)
	return nil
}

func TestGenerateForAnother(t *testing.T) {
	text := os.Getenv(asked)
	if text == "" {
		t.Skip("a process of other tests")
	}
	var q question
	if err := json.Unmarshal([]byte(text), &q); err != nil { //nolint:musttag // This program reads it again.
		t.Fatal(err)
	}
	l := New(q.Options)
	if driver, gpus, err := l.Open(); err != nil || driver.Version != "550.54.15" || gpus != 1 {
		t.Errorf("driver %+v with %d GPUs, %v", driver, gpus, err)
	}
	edits, err := l.Generate(&q.Machine)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := json.Marshal(edits) //nolint:musttag // This program reads it again.
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("\n" + asked + "=" + string(answer) + "\n")
}

func hostPaths(nodes []*specs.DeviceNode) (paths []string) {
	for _, n := range nodes {
		if paths = append(paths, n.HostPath); n.HostPath == "" {
			paths[len(paths)-1] = n.Path
		}
	}
	return paths
}

// mountOf is what a container has at a path.
func mountOf(e *gpu.Edits, path string) string {
	at := slices.IndexFunc(e.Common.Mounts, func(m *specs.Mount) bool { return m.ContainerPath == path })
	if at < 0 {
		return ""
	}
	return e.Common.Mounts[at].HostPath
}

// Wherever a distribution puts the driver, containers get its libraries where
// programs find them, its programs, and its nodes.
func TestLayouts(t *testing.T) {
	for _, tt := range []struct {
		name, folder, bin string
		// ownNodes: the driver's root has a /dev of its own.
		ownNodes bool
		// links has the SONAMEs alone, as links into folder, by way of via.
		links, via string
	}{
		{"Debian", "usr/lib/" + triple(), "usr/bin", true, "", ""},
		{"Red Hat", "usr/lib64", "usr/bin", true, "", ""},
		{"Arch", "usr/lib", "usr/bin", true, "", ""},
		{"not merged", "lib64", "bin", true, "", ""},
		{"GKE", gke + "/lib64", gke + "/bin", false, "", ""},
		{"Debian's own packages", "usr/lib/" + triple() + "/nvidia/current", "usr/bin", true, "usr/lib/" + triple(), "etc/alternatives"},
		{"a directory of its own", "usr/local/nvidia/lib64", "usr/bin", false, "", ""},
		{"a directory of its own, with links", "usr/local/nvidia/lib64", "usr/bin", false, "usr/lib", ""},
		{"Talos", "usr/local/glibc/usr/lib", "usr/local/bin", false, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := install(t, tt.folder)
			n.file("run/nvidia/driver/" + tt.bin + "/nvidia-smi")
			switch names := []string{"libnvidia-ml.so.1", "libcuda.so.1"}; {
			case tt.via != "":
				n.link(tt.links, tt.via, names...)
				n.link(tt.via, tt.folder, names...)
			case tt.links != "":
				n.link(tt.links, tt.folder, names...)
			}
			dev, want := "host/dev", filepath.Join(n.dir, "host/dev")
			if tt.ownNodes {
				dev, want = "run/nvidia/driver/dev", "/run/nvidia/driver/dev"
			}
			n.mknod(dev, "nvidiactl", "nvidia-uvm", "nvidia0")
			edits := n.generate(n.options())
			if len(edits.Problems)+len(edits.Missing) > 0 {
				t.Errorf("problems %q, missing %q", edits.Problems, edits.Missing)
			}
			if got := hostPaths(edits.Common.DeviceNodes); !slices.Contains(got, want+"/nvidiactl") || !slices.Contains(got, want+"/nvidia-uvm") {
				t.Errorf("control nodes %q, want those of %s", got, want)
			}
			if len(edits.Devices) != 1 || !slices.Equal(hostPaths(edits.Devices[0].ContainerEdits.DeviceNodes), []string{want + "/nvidia0"}) {
				t.Errorf("devices %+v", edits.Devices)
			}
			library := "/run/nvidia/driver/" + tt.folder + "/libcuda.so.550.54.15"
			for _, dir := range []string{"/usr/lib/" + triple(), "/usr/lib64"} {
				if got := mountOf(edits, dir+"/libcuda.so.1"); got != library {
					t.Errorf("%s/libcuda.so.1 is %q, want %s", dir, got, library)
				}
			}
			program := "/" + strings.TrimPrefix(tt.bin, gke+"/") + "/nvidia-smi"
			if got := mountOf(edits, program); got != "/run/nvidia/driver/"+tt.bin+"/nvidia-smi" {
				t.Errorf("%s is %q", program, got)
			}
		})
	}
}

// The fingerprint differs after whatever changes the edits, and the edits show
// what the node lacks.
func TestEditsFollowTheNode(t *testing.T) {
	n := install(t, "usr/lib64")
	n.mknod("run/nvidia/driver/dev", "nvidiactl", "nvidia0")
	o := n.options()
	o.Features = gpu.Features{GDRCopy: true, GDS: true, IMEX: "0"}
	o.Hook = "/usr/bin/nvidia-cdi-hook"
	n.gpu.Fabric = &machine.Fabric{ClusterUUID: "7f1c5a3e-0000-4000-8000-000000000001", State: machine.FabricCompleted}
	l, last := New(o), ""
	changed := func(what string) *gpu.Edits {
		t.Helper()
		now := l.Fingerprint()
		if now == last {
			t.Errorf("%s: the fingerprint is the same", what)
		}
		if last = l.Fingerprint(); last != now {
			t.Error("nothing changed, and the fingerprint is another one")
		}
		return n.generate(o)
	}
	nodes := func(e *gpu.Edits, device string) []string {
		at := slices.IndexFunc(e.Devices, func(d specs.Device) bool { return d.Name == device })
		if at < 0 {
			return nil
		}
		return hostPaths(e.Devices[at].ContainerEdits.DeviceNodes)
	}
	e := changed("at first")
	for _, word := range []string{"nvidia-modprobe -u -c=0", "NVreg_CreateImexChannel0=1", "no CDI hook /usr/bin/nvidia-cdi-hook", "gdrcopy is wanted", "gds is wanted"} {
		if !strings.Contains(strings.Join(e.Problems, "\n"), word) {
			t.Errorf("problems %q, want %q", e.Problems, word)
		}
	}
	if len(e.Common.Hooks) > 0 || mountOf(e, "/usr/lib64/libcuda.so.1") == "" {
		t.Errorf("without the hook's program: hooks %v, mounts %v", e.Common.Hooks, e.Common.Mounts)
	}
	n.mknod("run/nvidia/driver/dev", "nvidia-uvm")
	if e := changed("nvidia-uvm came"); len(e.Problems) != 4 {
		t.Errorf("problems %q", e.Problems)
	}
	n.mknod("run/nvidia/driver/dev", imexDir+"/channel0", imexDir+"/channel1")
	want := "/run/nvidia/driver/dev/" + imexDir + "/channel0"
	if e := changed("IMEX channels came"); !slices.Equal(nodes(e, imexDevice), []string{want}) {
		t.Errorf("channels %q, want %s", nodes(e, imexDevice), want)
	}
	byPod := o
	byPod.Features.IMEXByPod = true
	if e := n.generate(byPod); e.Channels[0] == nil || e.Channels[0].HostPath != want || len(nodes(e, imexDevice)) > 0 {
		t.Errorf("by request: channels %v, and for all %q", e.Channels, nodes(e, imexDevice))
	}
	n.file("usr/bin/nvidia-cdi-hook")
	if e := changed("the hook came"); len(e.Problems) != 2 || len(e.Common.Hooks) == 0 || mountOf(e, "/usr/lib64/libcuda.so.1") != "" {
		t.Errorf("with the hook: problems %q, hooks %v", e.Problems, e.Common.Hooks)
	}
	for socket, path := range map[string]string{
		"persistenced": "/run/nvidia-persistenced/socket", "fabricmanager": "/run/nvidia-fabricmanager/socket",
	} {
		n.file(driverContainer + path)
		if e := changed(socket + " came"); mountOf(e, path) != "/run/nvidia/driver"+path {
			t.Errorf("the socket of %s is not mounted", socket)
		}
		if err := os.Remove(filepath.Join(n.driver.Root, path)); err != nil {
			t.Fatal(err)
		}
		if e := changed(socket + " went"); mountOf(e, path) != "" {
			t.Errorf("the socket of %s is mounted, and gone", socket)
		}
	}
	n.mknod("run/nvidia/driver/dev", "gdrdrv", "nvidia-fs0")
	if e := changed("gdrcopy and GDS came"); len(nodes(e, "gdrcopy")) != 1 || len(nodes(e, "gds")) != 1 || len(e.Problems) > 0 {
		t.Errorf("devices %+v", e.Devices)
	}
	// A module that was loaded again may have another major number.
	if err := os.Remove(filepath.Join(n.driver.Root, "dev/nvidia-uvm")); err != nil {
		t.Fatal(err)
	}
	n.mknod("run/nvidia/driver/dev", "nvidia-modeset", "nvidia-uvm")
	changed("nvidia-uvm has another number")
	if _, err := nvidia.Install(t.Context(), n.driver.Root, "usr/lib64", "550.54.15"); err != nil {
		t.Fatal(err)
	}
	if l.Fingerprint() == last {
		t.Error("the driver was installed again: the fingerprint is the same")
	}
}

// With auto the spec follows a hook that comes and goes.
func TestHookIsLookedFor(t *testing.T) {
	n := install(t, "usr/lib64")
	n.mknod("run/nvidia/driver/dev", "nvidiactl", "nvidia-uvm", "nvidia0")
	o := n.options()
	o.Hook = gpu.AutoHook
	l := New(o)
	without := l.Fingerprint()
	e := n.generate(o)
	if mountOf(e, "/usr/lib64/libcuda.so.1") == "" || len(e.Common.Hooks) > 0 {
		t.Errorf("without a hook: hooks %v, mounts %v", e.Common.Hooks, e.Common.Mounts)
	}
	want := []string{"the host has no CDI hook /usr/bin/nvidia-cdi-hook or /usr/local/nvidia/toolkit/nvidia-cdi-hook: " +
		"install nvidia-container-toolkit; until then containers get the libraries without it"}
	if diff := cmp.Diff(want, e.Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	const hook = "usr/local/nvidia/toolkit/nvidia-cdi-hook"
	n.file(hook)
	if l.Fingerprint() == without {
		t.Error("the hook came: the fingerprint is the same")
	}
	e = n.generate(o)
	if len(e.Problems) > 0 || len(e.Common.Hooks) == 0 || e.Common.Hooks[0].Path != "/"+hook ||
		mountOf(e, "/usr/lib64/libcuda.so.1") != "" {
		t.Errorf("with the hook: problems %q, hooks %v", e.Problems, e.Common.Hooks)
	}
	with := l.Fingerprint()
	if err := os.Remove(filepath.Join(n.dir, hook)); err != nil {
		t.Fatal(err)
	}
	if l.Fingerprint() == with {
		t.Error("the hook went: the fingerprint is the same")
	}
}

// All channels, and none where the GPUs have no use for them.
func TestChannels(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	n.mknod("dev", imexDir+"/channel0", imexDir+"/channel17")
	p := place{dev: n.dir, hostDev: "/"}
	for _, tt := range []struct {
		wanted          string
		nodes, problems int
		spans           bool
	}{
		{"", 0, 0, true}, {"0", 1, 0, true}, {"0,17", 2, 0, true}, {"all", 2, 0, true}, {"1", 0, 1, true}, {"1", 0, 0, false},
	} {
		m := &machine.Machine{GPUs: []machine.GPU{{Fabric: &machine.Fabric{ClusterUUID: "00000000-0000-0000-0000-000000000000"}}}}
		if tt.spans {
			m.GPUs[0].Fabric.ClusterUUID = "7f1c5a3e-0000-4000-8000-000000000001"
		}
		out, l := &gpu.Edits{}, New(gpu.Options{Features: gpu.Features{IMEX: tt.wanted}})
		l.addChannels(out, p, m)
		got := 0
		for _, d := range out.Devices {
			got += len(d.ContainerEdits.DeviceNodes)
		}
		if got != tt.nodes || len(out.Problems) != tt.problems {
			t.Errorf("%q: %d nodes, problems %q", tt.wanted, got, out.Problems)
		}
		takeChannels(out)
		for _, d := range out.Devices {
			if empty(&d.ContainerEdits) || len(d.ContainerEdits.DeviceNodes) > 0 {
				t.Errorf("%q by request: the device %+v", tt.wanted, d)
			}
		}
		for number, node := range out.Channels {
			if want := "/dev/" + imexDir + "/channel" + strconv.Itoa(number); node.Path != want {
				t.Errorf("%q by request: channel %d is %s, want %s", tt.wanted, number, node.Path, want)
			}
		}
		if len(out.Channels) != tt.nodes {
			t.Errorf("%q by request: channels %v", tt.wanted, out.Channels)
		}
	}
}
