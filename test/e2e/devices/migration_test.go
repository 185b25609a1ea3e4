//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// peer is another device plugin that serves a resource on the node.
type peer interface {
	start(t *testing.T, r *rig)
	stop(t *testing.T)
}

// migration is a node that goes from a peer to heddle and back, with one manifest.
type migration struct {
	peer
	// from is that of `heddle config convert`, file what it reads.
	from, file string
	// resource is what the manifest asks for; theirs and ours are how many of it the Node
	// has with the peer and with heddle.
	resource     string
	theirs, ours int64
	manifest     box
}

// TestMigration: a node with another device plugin and a running pod is given to heddle,
// with what `heddle config convert` makes of that plugin's configuration, and back. The
// manifest is never changed, and running containers are never touched.
func TestMigration(t *testing.T) {
	beside(t)
	whole, sliced := "version: v1\nflags: {migStrategy: none}\n", replicasOf("timeSlicing")
	t.Run("nvidia", func(t *testing.T) {
		t.Parallel()
		newRig(t, options{name: "from-nvidia", held: true}).migrate(t, &migration{
			peer: &nvidiaPlugin{file: whole}, from: "nvidia", file: whole,
			resource: gpuResource, theirs: 8, ours: 8, manifest: box{gpus: 2},
		})
	})
	t.Run("nvidia-time-slicing", func(t *testing.T) {
		t.Parallel()
		newRig(t, options{name: "from-slices", held: true}).migrate(t, &migration{
			peer: &nvidiaPlugin{file: sliced}, from: "nvidia", file: sliced,
			resource: gpuResource, theirs: 32, ours: 32, manifest: box{gpus: 1},
		})
	})
	// The one GPU that is shared stays its pod's: the other seven are handed out.
	t.Run("nvidia-time-slicing-to-whole-gpus", func(t *testing.T) {
		t.Parallel()
		newRig(t, options{name: "to-whole", held: true}).migrate(t, &migration{
			peer: &nvidiaPlugin{file: sliced}, from: "nvidia", file: "version: v1\n",
			resource: gpuResource, theirs: 32, ours: 7, manifest: box{gpus: 1},
		})
	})
	t.Run("nvidia-mps", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{name: "from-mps", held: true})
		r.mpsKeeper(t)
		r.migrate(t, &migration{
			peer: &replicas{number: 4}, from: "nvidia", file: replicasOf("mps"),
			resource: gpuResource, theirs: 32, ours: 32, manifest: box{gpus: 1},
		})
		if got := r.sees(t, "after", "app").Env["CUDA_MPS_PIPE_DIRECTORY"]; got != "/tmp/nvidia-mps" {
			t.Errorf("CUDA_MPS_PIPE_DIRECTORY is %q", got)
		}
	})
	t.Run("mellanox", func(t *testing.T) {
		t.Parallel()
		newRig(t, options{name: "from-mellanox", held: true}).migrate(t, &migration{
			peer: &mellanoxPlugin{}, from: "mellanox", file: sharedHCAs,
			resource: hcaResource, theirs: 63, ours: 63, manifest: box{hcas: 1},
		})
	})
}

// TestMigrationFromGPUFeatureDiscovery: labels that are there by GPU feature discovery, as
// node-feature-discovery writes them, are no conflict where the values are the same; when it takes
// them away heddle-feature-discovery writes them; and another writer can have them back.
func TestMigrationFromGPUFeatureDiscovery(t *testing.T) {
	beside(t)
	r := newRig(t, options{name: "from-gfd", held: true})
	b, err := builds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]string{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
	label := func(suffix func(value string) string) {
		args := []string{"label", "node", r.Node(), "--overwrite", "--field-manager=nfd-master"}
		for key, value := range theirs {
			args = append(args, key+suffix(value))
		}
		if _, err := r.Kubectl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	has := func() {
		t.Helper()
		eventually(t, 30*time.Second, func() string {
			labels := r.node(t).Labels
			for key, value := range theirs {
				if labels[key] != value || labels["heddle.dev/rdma.hca.count"] != "8" {
					return fmt.Sprintf("labels %v", labels)
				}
			}
			return ""
		})
	}
	label(func(value string) string { return "=" + value })
	p := &process{rig: r, binary: b.node, daemon: labelerDaemon, log: &journal{}, args: []string{
		"--node-name", r.Node(), "--machine", r.machineFile(), "--config", filepath.Join(r.dir, "config"), "--interval", "1s",
	}}
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.stop(r.ctx(t)) })
	has()
	if reported := r.events(t, r.Node(), wellknown.EventLabelConflict); len(reported) > 0 {
		t.Errorf("Events %q", reported)
	}
	label(func(string) string { return "-" })
	has()
	if err := p.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	label(func(value string) string { return "=" + value })
	has()
}

// replicasOf is the configuration of NVIDIA's plugin for four pods on a GPU.
func replicasOf(kind string) string {
	return "version: v1\nsharing:\n  " + kind + ":\n    resources:\n    - {name: nvidia.com/gpu, replicas: 4}\n"
}

// sharedHCAs is Mellanox's example, for every ConnectX of the machine.
const sharedHCAs = `{"periodicUpdateInterval": 300, "configList": [{
  "resourceName": "hca_shared_devices_ib", "resourcePrefix": "rdma", "rdmaHcaMax": 63,
  "selectors": {"vendors": ["15b3"], "drivers": ["mlx5_core"]}
}]}`

func (r *rig) migrate(t *testing.T, m *migration) {
	t.Helper()
	m.start(t, r)
	r.waitHealthyDevices(t, m.resource, int(m.theirs))
	r.run(t, r.pod("before", m.manifest))
	before := r.lives(t, "before")

	m.stop(t)
	if err := r.writeConfig(r.converted(t, m.from, m.file)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitOwn(t, m.resource)
	t.Logf("%s is heddle's after %.1f s", m.resource, time.Since(begin).Seconds())
	r.waitAllocatable(t, m.resource, m.ours, waitStart)
	r.untouched(t, before)
	r.run(t, r.pod("after", m.manifest))
	after := r.lives(t, "before", "after")
	if shared := common(after["before"].GPUs, after["after"].GPUs); len(shared) > 0 {
		t.Errorf("both pods have %v", shared)
	}
	if got := after["after"]; len(got.GPUs) != m.manifest.gpus || len(got.HCAs) != len(after["before"].HCAs) {
		t.Errorf("the pod has GPUs %v and HCAs %v", got.GPUs, got.HCAs)
	}
	r.startsOver(t, "before")
	after = r.lives(t, "before", "after")

	if err := r.plugin.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.start(t, r)
	r.waitHealthyDevices(t, m.resource, int(m.theirs))
	r.untouched(t, after)
	r.run(t, r.pod("again", m.manifest))
	if got := r.lives(t, "again")["again"]; len(got.GPUs) != m.manifest.gpus || len(got.HCAs) != len(after["before"].HCAs) {
		t.Errorf("the pod of the other plugin has GPUs %v and HCAs %v", got.GPUs, got.HCAs)
	}
	r.startsOver(t, "after")
}

// startsOver proves that a container which ends is started again with the devices that it
// had, also while another plugin serves them than the one that gave them.
func (r *rig) startsOver(t *testing.T, pod string) {
	t.Helper()
	before := r.lives(t, pod)
	r.waitRestart(t, pod, "app", r.crash(t, pod)+1, waitStart)
	r.sameDevices(t, before)
}

// waitHealthyDevices waits until the kubelet has so many healthy devices of a resource.
// The Node shows those of a plugin that has ended for a moment more.
func (r *rig) waitHealthyDevices(t *testing.T, resource string, want int) {
	t.Helper()
	eventually(t, waitStart, func() string {
		all, err := podresources.NewPodResourcesListerClient(r.conn).GetAllocatableResources(
			t.Context(), &podresources.AllocatableResourcesRequest{})
		got := 0
		for _, d := range all.GetDevices() {
			if d.GetResourceName() == resource {
				got += len(d.GetDeviceIds())
			}
		}
		if err != nil || got != want {
			return fmt.Sprintf("the kubelet has %d of %s, want %d: %v", got, resource, want, err)
		}
		return ""
	})
	r.waitAllocatable(t, resource, int64(want), waitStart)
}

// converted is what `heddle config convert` prints.
func (r *rig) converted(t *testing.T, from, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program(t, "heddle"), "config", "convert", "--from", from, file)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// waitOwn waits until heddle serves a resource.
func (r *rig) waitOwn(t *testing.T, resource string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		if text, err := r.get(t.Context(), "/readyz"); err != nil {
			return fmt.Sprint(text, err)
		}
		if s := r.served(t, resource); !s.Registered {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
}

func common(a, b []string) (both []string) {
	for _, s := range a {
		if slices.Contains(b, s) {
			both = append(both, s)
		}
	}
	return both
}

// replicas stands in for NVIDIA's k8s-device-plugin with MPS, whose control daemon needs a GPU: its
// device IDs, its answers (deviceListStrategy envvar with passDeviceSpecs).
type replicas struct {
	number int
	end    func()
}

func (p *replicas) start(t *testing.T, r *rig) {
	t.Helper()
	m := r.machine(t)
	var ids []string
	for i := range m.GPUs {
		for n := range p.number {
			ids = append(ids, fmt.Sprint(m.GPUs[i].UUID, "::", n))
		}
	}
	p.end = r.foreign(t, "nvidia-gpu.sock", gpuResource, ids...)
}

func (p *replicas) stop(*testing.T) { p.end() }

// mellanoxPlugin is Mellanox's k8s-rdma-shared-dev-plugin, which finds the machine's HCAs
// in a /sys of its own.
type mellanoxPlugin struct{ process *process }

func (p *mellanoxPlugin) start(t *testing.T, r *rig) {
	t.Helper()
	if p.process == nil {
		p.process = r.mellanox(t)
	}
	mark := p.process.log.mark()
	if err := p.process.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() string {
		if text := p.process.log.since(mark); !strings.Contains(text, "ListAndWatch called by kubelet") {
			return "the kubelet has not its list: " + text
		}
		return ""
	})
}

func (p *mellanoxPlugin) stop(t *testing.T) {
	t.Helper()
	if err := p.process.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// mellanox builds the plugin and the node that it sees: HCAs in /sys, a database of PCI
// names, and /dev/infiniband with the nodes of umad too, without which it takes no HCA.
func (r *rig) mellanox(t *testing.T) *process {
	t.Helper()
	program, host := filepath.Join(r.dir, "mellanox"), filepath.Join(r.dir, "host")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "mellanox", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tree := sysfstest.At(t, host)
	m := r.machine(t)
	for i := range m.HCAs {
		h := &m.HCAs[i]
		vendor, device := strings.TrimPrefix(h.Vendor, "0x"), strings.TrimPrefix(h.Device, "0x")
		function := tree.PCI(sysfstest.Function{
			Path: "pci0000:00/" + h.PCI, Class: "0x020700", Vendor: h.Vendor, Device: h.Device, Driver: "mlx5_core",
		})
		tree.Write(function+"/modalias", fmt.Sprintf("pci:v0000%sd0000%ssv0000%ssd00000023bc02sc07i00",
			strings.ToUpper(vendor), strings.ToUpper(device), strings.ToUpper(vendor)))
		number, err := strconv.Atoi(strings.TrimPrefix(h.CharDevices.UVerbs[0], "uverbs"))
		if err != nil {
			t.Fatal(err)
		}
		tree.RDMA(function, sysfstest.RDMA{Name: h.Name, Ports: []map[string]string{nil}, UVerbs: number, UMAD: number, ISSM: -1})
	}
	names := filepath.Join(host, "pci.ids")
	if err := os.WriteFile(names, []byte("15b3  Mellanox Technologies\nC 02  Network controller\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	majors, err := freeMajors(3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.HCAs {
		node := filepath.Join(r.dir, "infiniband", m.HCAs[i].CharDevices.UMAD[0])
		if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(majors[2], uint32(i)))); err != nil {
			t.Fatal(err)
		}
	}
	r.deviceDirectory(t)
	config := filepath.Join(r.dir, "mellanox.json")
	if err := os.WriteFile(config, []byte(sharedHCAs), 0o644); err != nil {
		t.Fatal(err)
	}
	p := &process{rig: r, binary: "unshare", log: &journal{}, args: []string{
		"--mount", "sh", "-ec", `mount --bind "$1" /sys; PCIDB_PATH="$2" exec "$3" "$4"`, "sh", tree.Sys(), names, program, config,
	}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the other plugin:\n%s", tail(p.log.String(), 3000))
		}
		if err := p.stop(r.ctx(t)); err != nil {
			t.Error(err)
		}
	})
	return p
}

// deviceDirectory makes the machine's nodes of HCAs those of /dev/infiniband on the node.
func (r *rig) deviceDirectory(t *testing.T) {
	t.Helper()
	const dir = "/dev/infiniband"
	if err := os.Mkdir(dir, 0o755); err == nil {
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
	} else if !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	r.onNode(t, "mount --bind "+filepath.Join(r.dir, "infiniband")+" "+dir)
	t.Cleanup(func() { r.onNode(t, "umount "+dir) })
}
