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
	whole, sliced := "version: v1\nflags: {migStrategy: none}\n", replicasOf("timeSlicing")
	t.Run("nvidia", func(t *testing.T) {
		newRig(t, options{name: "from-nvidia", held: true}).migrate(t, &migration{
			peer: &nvidiaPlugin{file: whole}, from: "nvidia", file: whole,
			resource: gpuResource, theirs: 8, ours: 8, manifest: box{gpus: 2},
		})
	})
	t.Run("nvidia-time-slicing", func(t *testing.T) {
		newRig(t, options{name: "from-slices", held: true}).migrate(t, &migration{
			peer: &nvidiaPlugin{file: sliced}, from: "nvidia", file: sliced,
			resource: gpuResource, theirs: 32, ours: 32, manifest: box{gpus: 1},
		})
	})
	t.Run("mellanox", func(t *testing.T) {
		newRig(t, options{name: "from-mellanox", held: true}).migrate(t, &migration{
			peer: &mellanoxPlugin{}, from: "mellanox", file: sharedHCAs,
			resource: hcaResource, theirs: 63, ours: 63, manifest: box{hcas: 1},
		})
	})
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
	r.waitAllocatable(t, m.resource, m.ours)
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
	r.waitRestart(t, pod, "app", r.crash(t, pod)+1)
	r.sameDevices(t, before)
}

// waitHealthyDevices waits until the kubelet has so many healthy devices of a resource.
// The Node shows those of a plugin that has ended for a moment more.
func (r *rig) waitHealthyDevices(t *testing.T, resource string, want int) {
	t.Helper()
	eventually(t, func() string {
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
	r.waitAllocatable(t, resource, int64(want))
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
	eventually(t, func() string {
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
	eventually(t, func() string {
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
