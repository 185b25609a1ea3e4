//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/machine"
)

// TestSingleNUMANode: with the kubelet's strictest topology policy and pinned
// processors, GPUs, HCAs and the processor of a container are of one NUMA node,
// and a pod that fits into none is rejected. One of the pods is that of the quick start. The node is shown two NUMA nodes,
// like the machine that the plugin replays.
func TestSingleNUMANode(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("it takes two processors to have two NUMA nodes")
	}
	r := newRig(t, options{name: "numa", held: true, kubelet: map[string]any{
		"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "container",
		"cpuManagerPolicy": "static", "reservedSystemCPUs": "0",
	}})
	split := runtime.NumCPU() / 2
	r.twoNUMANodes(t, split)
	t.Logf("ready %s after its start", r.plugin.again(t))
	r.waitAllocatable(t, gpuResource, 8)
	r.waitAllocatable(t, hcaResource, 8*64)

	r.create(t, r.pod("five", box{gpus: 5, hcas: 1}))
	r.waitPod(t, "five", func(p *corev1.Pod) string {
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "TopologyAffinityError" {
			return "five GPUs fit into no NUMA node, and it is not rejected"
		}
		return ""
	})

	r.run(t, r.pod("pinned", box{gpus: 4, hcas: 4, more: corev1.ResourceList{
		corev1.ResourceCPU: quantity(1), corev1.ResourceMemory: resource.MustParse("64Mi"),
	}}))
	pinned := r.has(t, "pinned", "app", 4, 4)
	if len(pinned.CPUs) != 1 {
		t.Fatalf("the container may run on processors %v", pinned.CPUs)
	}
	of := func(cpu int) int {
		if cpu < split {
			return 0
		}
		return 1
	}
	node := of(pinned.CPUs[0])
	if got := numaNodes(r.machine(t), pinned); !slices.Equal(got, []int{node}) {
		t.Errorf("processor %d of NUMA node %d came with GPUs and HCAs of %v", pinned.CPUs[0], node, got)
	}

	// The pod of the quick start, under its own name.
	example := &corev1.Pod{}
	documented(t, "gpu-rdma-pod.yaml", example)
	if example.Name != "gpu-rdma" || example.Spec.Containers[0].Name != "main" {
		t.Errorf("the quick start asks the pod gpu-rdma, the example is %s", example.Name)
	}
	r.run(t, r.atHand(example))
	rest := r.has(t, "gpu-rdma", "main", 4, 4)
	if got := numaNodes(r.machine(t), rest); !slices.Equal(got, []int{1 - node}) {
		t.Errorf("the other pod has GPUs and HCAs of NUMA nodes %v", got)
	}
}

// numaNodes are those of all devices that a container sees.
func numaNodes(m *machine.Machine, s *seen) []int {
	var nodes []int
	add := func(pci string) {
		if f := m.Function(pci); f != nil && f.NUMA != nil {
			nodes = append(nodes, *f.NUMA)
		} else {
			nodes = append(nodes, -1)
		}
	}
	for i := range m.GPUs {
		if slices.Contains(s.GPUs, m.GPUs[i].UUID) {
			add(m.GPUs[i].PCI)
		}
	}
	for i := range m.HCAs {
		if slices.Contains(s.HCAs, m.HCAs[i].Name) {
			add(m.HCAs[i].PCI)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// twoNUMANodes shows the kubelet two NUMA nodes in place of the machine's, the
// first with the processors below split. Only what the kubelet reads is there.
func (r *rig) twoNUMANodes(t *testing.T, split int) {
	t.Helper()
	dir := filepath.Join(r.dir, "numa")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"online", "possible", "has_cpu", "has_memory"} {
		write(name, "0-1\n")
	}
	for node, distances := range []string{"10 21\n", "21 10\n"} {
		at := fmt.Sprintf("node%d", node)
		write(at+"/distance", distances)
		write(at+"/meminfo", fmt.Sprintf("Node %d MemTotal:       8388608 kB\n", node))
		write(at+"/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
	}
	for cpu := range runtime.NumCPU() {
		node := 0
		if cpu >= split {
			node = 1
		}
		name := fmt.Sprintf("cpu%d", cpu)
		if err := os.Symlink("/sys/devices/system/cpu/"+name, filepath.Join(dir, fmt.Sprintf("node%d", node), name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.StopKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.NodeExec(t.Context(), "mount", "--bind", dir, "/sys/devices/system/node"); err != nil {
		t.Fatal(err)
	}
	// It is about the other processors.
	if err := os.Remove(filepath.Join(r.NodeDir("/var/lib/kubelet"), "cpu_manager_state")); err != nil {
		t.Fatal(err)
	}
	if err := r.StartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
}
