//go:build e2e && linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// driverLayout is how a node comes by NVIDIA's driver.
type driverLayout struct {
	name string
	// container: the driver is below /run/nvidia/driver, else below /.
	container bool
	// runtime is containerd's default runtime; others has one more.
	runtime, others string
	// cdi is a spec of NVIDIA's toolkit.
	cdi bool
}

// TestDriverAfterDaemons: the daemons find a driver that is installed after them, and none restarts for that.
// TestQuickStart has the driver first, in each layout.
func TestDriverAfterDaemons(t *testing.T) {
	if _, err := os.Lstat("/dev/nvidiactl"); err == nil {
		t.Skip("this machine has a driver of its own")
	}
	b := ownBed(t, cluster.Options{Name: "e2e-driver"})
	if err := b.installer.Image(t.Context(), b.Cluster, "heddle", nodeName); err != nil {
		t.Fatal(err)
	}
	if err := b.installer.Chart(t.Context(), b.Cluster); err != nil {
		t.Fatal(err)
	}
	b.layOut(t, &driverLayout{runtime: "runc"}, "NVIDIA L")
	b.offersGPUs(t, "NVIDIA-L")
	b.useGPU(t)
}

// driverLayouts are all of them.
func driverLayouts() []driverLayout {
	return []driverLayout{
		{name: "the driver alone", runtime: "runc"},
		{name: "a driver container", runtime: "runc", container: true},
		{name: "NVIDIA's runtime is the default", runtime: "nvidia", others: "runc"},
		{name: "a RuntimeClass", runtime: "runc", others: "nvidia"},
		{name: "CDI only", runtime: "runc", cdi: true},
	}
}

// driverGPUs is the number of GPUs that a driver here has.
const driverGPUs = 8

// TestKubeletRootDir: on a node whose kubelet has another --root-dir, as k0s has, one value brings its GPUs.
func TestKubeletRootDir(t *testing.T) {
	const dir = "/var/lib/k0s/kubelet"
	b := ownBed(t, cluster.Options{Name: "e2e-root-dir", RootDir: dir})
	if err := b.installer.Image(t.Context(), b.Cluster, "heddle", nodeName); err != nil {
		t.Fatal(err)
	}
	b.layOut(t, &driverLayout{runtime: "runc", container: true}, "NVIDIA R")
	if err := b.installer.Chart(t.Context(), b.Cluster, "--set", "gpuDevice.kubeletDir="+dir); err != nil {
		t.Fatal(err)
	}
	b.offersGPUs(t, "NVIDIA-R")
	b.useGPU(t)
}

// layOut installs a driver on the node, until the test ends.
func (b *bed) layOut(t *testing.T, l *driverLayout, product string) *nvidia.Driver {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	root, folder, dev := filepath.Join(b.Dir(), "driver"), "usr/local/nvidia/lib64", "/dev"
	if l.container {
		root, folder = b.NodeDir("/run/nvidia/driver"), "usr/lib/"+nvidia.Triple()
		dev = filepath.Join(root, "dev")
	}
	d, err := nvidia.Install(ctx, root, folder, "550.54.15")
	if err != nil {
		t.Fatal(err)
	}
	control := nvidia.Control{Kernel: "550.54.15"}
	names := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	for i := range driverGPUs {
		control.GPUs = append(control.GPUs, nvidia.GPU{
			UUID: fmt.Sprintf("GPU-5b8b4a5e-0000-4000-8000-%012d", i), PCI: fmt.Sprintf("0000:%02x:00.0", 0xe0+i), Name: product,
			Minor: i, MemoryMiB: 81559, MIG: -1,
		})
		names = append(names, fmt.Sprint("nvidia", i))
	}
	if err := errors.Join(d.Set(control), os.MkdirAll(dev, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	for _, name := range names { // Nothing answers: they are /dev/null.
		path := filepath.Join(dev, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		})
	}
	if !l.container { // The node sees this below /, and the machine does not.
		b.onNode(t, "mount -t tmpfs heddle /usr/local && mkdir /usr/local/nvidia && cp -a "+filepath.Join(root, folder)+" /usr/local/nvidia/")
		t.Cleanup(func() { b.onNode(t, "umount -l /usr/local") })
	}
	if l.cdi {
		spec := filepath.Join(b.NodeDir("/etc/cdi"), "nvidia.json")
		text := `{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [
			{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}]}`
		if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.containerdRuntime(t, l)
	return d
}

func (b *bed) onNode(t *testing.T, script string) {
	t.Helper()
	if out, err := b.NodeExec(context.WithoutCancel(t.Context()), "sh", "-ec", script); err != nil {
		t.Errorf("%s: %v: %s", script, err, out)
	}
}

// containerdRuntime gives containerd a runtime named nvidia, or makes it the default. NVIDIA's adds nothing to
// containers with NVIDIA_VISIBLE_DEVICES=void, and here it adds nothing to any.
func (b *bed) containerdRuntime(t *testing.T, l *driverLayout) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	file := filepath.Join(b.Dir(), "containerd.toml")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if l.runtime == "runc" && l.others == "" {
		return
	}
	const runc = `[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]`
	_, section, _ := strings.Cut(string(before), runc)
	section, _, _ = strings.Cut(runc+section, `  [plugins."io.containerd.cri.v1.runtime".cni]`)
	text := strings.Replace(string(before), runc, strings.ReplaceAll(section, "runtimes.runc", "runtimes.nvidia")+"    "+runc, 1)
	text = strings.Replace(text, `default_runtime_name = "runc"`, fmt.Sprintf("default_runtime_name = %q", l.runtime), 1)
	restart := func(config []byte) {
		err := errors.Join(b.StopContainerd(ctx), os.WriteFile(file, config, 0o600), b.StartContainerd(ctx))
		if err != nil {
			t.Fatal(err)
		}
	}
	restart([]byte(text))
	t.Cleanup(func() { restart(before) })
}

// offersGPUs waits until the node has the label of a product and offers its GPUs, and no daemon has restarted.
func (b *bed) offersGPUs(t *testing.T, product string) {
	t.Helper()
	b.waitLabel(t, "nvidia.com/gpu.product", product)
	eventually(t, func() string {
		got := b.node(t, b.Node()).Status.Allocatable["nvidia.com/gpu"]
		if got.Value() != driverGPUs {
			return "the node offers " + got.String() + " GPUs"
		}
		return ""
	})
	pods, err := b.client.CoreV1().Pods(suite).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=heddle"})
	if err != nil || len(pods.Items) != 2 {
		t.Fatalf("%d pods of heddle, %v", len(pods.Items), err)
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 0 {
				t.Errorf("%s has restarted %d times", c.Name, c.RestartCount)
			}
		}
	}
}

// useGPU runs a pod with a GPU: it has the nodes and the libraries that CUDA needs.
func (b *bed) useGPU(t *testing.T) {
	t.Helper()
	b.applied(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: cuda, namespace: default}, spec: {
		terminationGracePeriodSeconds: 0, containers: [{name: main, image: %q, command: [sleep, infinity],
		resources: {limits: {nvidia.com/gpu: 1}}}]}}`, cluster.BusyboxImage))
	defer b.kubectl(t, "delete", "pod", "cuda", "--wait")
	b.kubectl(t, "wait", "pod/cuda", "--for=condition="+string(corev1.PodReady), "--timeout="+patience.String())
	out := b.kubectl(t, "exec", "cuda", "--", "sh", "-c", "ls /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9] /usr/lib64/libcuda.so.1")
	if got := strings.Fields(out); len(got) != 4 {
		t.Errorf("the container has %q", got)
	}
}
