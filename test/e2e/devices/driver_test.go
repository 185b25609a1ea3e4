//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/cluster/image"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// TestDriverUpgrade: pods run on GPUs, the packages of a new driver replace the
// libraries, later its kernel module replaces the old one. The plugin ends by
// itself, with a reason, since its process has the old library for ever; the
// one that is started in its place serves the new driver within 30 s.
// feature-discovery and topo-worker end in the same way. Running pods see nothing of it.
func TestDriverUpgrade(t *testing.T) {
	r, n := newDriverRig(t, "upgrade")
	d := newReaders(t, r, n)
	eventually(t, func() string { // The others have one for the length of a scan.
		if holders, err := n.Holders(); err != nil || !slices.Equal(holders, []int{r.plugin.pid()}) {
			return fmt.Sprintf("the driver's session is held by %v, %v, want the plugin alone", holders, err)
		}
		return ""
	})
	before := r.run(t, r.pod("before", box{gpus: 2}))
	saw := r.report(t, "before", "app").opens()
	if len(saw) < 3 {
		t.Errorf("the pod opens %q, want two GPUs and nvidiactl", saw)
	}

	n.libraries(t, n.Root, driverAfter)
	n.set(t)
	eventually(t, func() string {
		for name, n := range d.ended() {
			if n == 0 {
				return name + " goes on with a library that is not installed any more"
			}
		}
		return ""
	})
	for _, p := range d.daemons {
		if lines := p.log.grep("the driver was upgraded"); len(lines) == 0 {
			t.Errorf("%s ended without the reason", p.name())
		}
	}
	// Until the module is replaced too, nothing can use a GPU.
	r.waitEvent(t, r.Node(), "NothingToOffer", "Driver/library version mismatch")
	swapped := time.Now()
	n.control.Kernel = driverAfter
	n.set(t)
	eventually(t, func() string {
		out, err := r.get(t.Context(), "/metrics")
		if err != nil {
			return err.Error()
		}
		if want := fmt.Sprintf("heddle_resource_allocatable{resource=%q} 8", gpuResource); !strings.Contains(out, want) {
			return "no GPU is offered"
		}
		return ""
	})
	took := time.Since(swapped)
	d.waitPublished(t, driverAfter)
	ended := d.ended()
	if ended["heddle-feature-discovery"] != 1 || ended["heddle-topo-worker"] != 1 {
		t.Errorf("the daemons ended %v times, want the last two once", ended)
	}
	t.Logf("%.1f s after the kernel module was replaced, the plugin serves %s; the daemons ended %v times", took.Seconds(), driverAfter, ended)

	d.untouched(t, before)
	r.run(t, r.pod("after", box{gpus: 6}))
	if s := r.report(t, "after", "app").opens(); len(s) < 7 {
		t.Errorf("the new pod opens %q, want six GPUs and nvidiactl", s)
	}
}

// TestDriverInTheNodesNamespace: the driver's root is mounted in the node's namespace alone, and has what
// Debian's own packages install, behind absolute links, which lead nowhere but below that root. A program finds
// its library by the SONAME there: with the default values, no CDI hook makes such links.
func TestDriverInTheNodesNamespace(t *testing.T) {
	r, n := newDriverRig(t, "namespace")
	program := n.buildCUDAProgram(t)
	n.behindLinks(t)
	root := filepath.Join(r.dir, "mounted")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	r.onNode(t, "mount --bind "+n.Root+" "+root)
	r.plugin.args[slices.Index(r.plugin.args, n.Root)] = root
	r.runsCUDA(t, program)
}

// behindLinks moves the libraries away, as Debian's packages have them: the names that programs are
// linked with are links to /etc/alternatives, and those lead to the files.
func (n *nodeWithDriver) behindLinks(t *testing.T) {
	t.Helper()
	loader := filepath.Join("/usr/lib", nvidia.Triple())
	current := filepath.Join(loader, "nvidia/current")
	all, err := filepath.Glob(filepath.Join(n.Root, loader, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{current, "/etc/alternatives"} {
		if err := os.MkdirAll(filepath.Join(n.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range all {
		name := filepath.Base(file)
		err := os.Rename(file, filepath.Join(n.Root, current, name))
		if strings.HasSuffix(name, ".so.1") {
			alternative := filepath.Join("/etc/alternatives", name)
			err = errors.Join(err, os.Symlink(alternative, file),
				os.Symlink(filepath.Join(current, name), filepath.Join(n.Root, alternative)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// runsCUDA starts the plugin, and a pod with a GPU that runs a program which is linked with the driver.
func (r *rig) runsCUDA(t *testing.T, program []byte) {
	t.Helper()
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitRegistered(t)
	r.waitAllocatable(t, gpuResource, 8)
	archive := filepath.Join(r.dir, "cuda.tar")
	err := image.Pack(t.Context(), archive, image.Spec{
		Name: "localhost/devices-cuda:1", Files: map[string]string{"/true": "/bin/true"},
		Data: map[string][]byte{"/cuda": program}, Entrypoint: []string{loader(), "/cuda"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.LoadImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	p := r.pod("cuda", box{gpus: 1})
	p.Spec.Containers[0].Image, p.Spec.Containers[0].Args = "localhost/devices-cuda:1", nil
	p.Spec.RestartPolicy = "Never"
	r.create(t, p)
	var log string
	eventually(t, func() string {
		if p := r.getPod(t, "cuda"); p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed" {
			return inShort(p)
		}
		b, err := r.client.CoreV1().Pods(namespace).GetLogs("cuda", &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil {
			return err.Error()
		}
		log = string(b)
		return ""
	})
	if !strings.Contains(log, "cuInit 0") {
		t.Errorf("the program did not find libcuda.so.1: %s", log)
	}
}

// loader is the dynamic loader of this machine's programs.
func loader() string {
	if runtime.GOARCH == "arm64" {
		return "/lib/ld-linux-aarch64.so.1"
	}
	return "/lib64/ld-linux-x86-64.so.2"
}
