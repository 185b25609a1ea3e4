//go:build e2e && linux

package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// TestAMDPartitions: on a replayed node of eight MI300X in CPX each of the 64
// partitions is an amd.com/gpu. Pods on partitions of one GPU open their own render
// node and not each other's. A GPU whose mode changes meanwhile is offered as it is
// now, and the pods on others keep what they have.
func TestAMDPartitions(t *testing.T) {
	beside(t)
	r := newRig(t, options{
		name: "amdcpx", machine: "amd-mi300x-cpx", config: quickHealth + "domains: {vendor: auto}\n",
	})
	r.waitAllocatable(t, amdResource, 64, waitStart)
	m := r.machine(t)
	parent, node := map[string]string{}, map[string]string{}
	for i := range m.GPUs {
		for _, d := range m.GPUs[i].MIG.Devices {
			parent[d.UUID], node[d.UUID] = m.GPUs[i].UUID, fmt.Sprintf("/dev/dri/renderD%d", *d.Minor)
		}
	}
	r.hasDriverDevices(t, node)
	got := map[string]string{}
	const first = "amd-partition"
	example := &corev1.Pod{}
	documented(t, "amd/partition-pod.yaml", example)
	for _, p := range []*corev1.Pod{r.atHand(example), r.pod("two", box{more: corev1.ResourceList{amdResource: quantity(1)}})} {
		r.run(t, p)
		name := p.Name
		s := r.has(t, name, "app", 1, 0)
		if len(s.GPUs) != 1 {
			t.Fatalf("pod %s has %v", name, s.GPUs)
		}
		got[name] = s.GPUs[0]
		if diff := cmp.Diff([]string{node[got[name]]}, r.renderNodes(t, name)); diff != "" {
			t.Errorf("pod %s: nodes in /dev/dri (-want +got):\n%s", name, diff)
		}
	}
	if one, two := got[first], got["two"]; one == two || parent[one] != parent[two] {
		t.Errorf("the pods have %s and %s, want two partitions of one GPU", one, two)
	}

	// The mode of a GPU that no pod is on changes, and back.
	other := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID != parent[got[first]] })
	whole := r.machine(t)
	whole.GPUs[other].MIG = machine.MIG{Capable: true, Mode: "SPX/NPS1"}
	if err := r.writeMachine(whole); err != nil {
		t.Fatal(err)
	}
	r.waitOffered(t, amdResource, 7*8+1)
	r.waitAllocatable(t, amdResource, 7*8+1, waitStart)
	if ids := r.offeredIDs(t); !slices.Contains(ids, m.GPUs[other].UUID) {
		t.Errorf("the GPU in SPX is not among %v", ids)
	}
	r.hasPartitions(t, got)
	if err := r.writeMachine(m); err != nil {
		t.Fatal(err)
	}
	r.waitOffered(t, amdResource, 64)
	r.waitAllocatable(t, amdResource, 64, waitStart)
	r.hasPartitions(t, got)

	// The mode of the GPU that both pods are on changes: it is listed, and no pod gets it
	// until both are gone.
	held := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == parent[got[first]] })
	whole = r.machine(t)
	whole.GPUs[held].MIG = machine.MIG{Capable: true, Mode: "SPX/NPS1"}
	if err := r.writeMachine(whole); err != nil {
		t.Fatal(err)
	}
	r.waitOffered(t, amdResource, 7*8)
	r.waitAllocatable(t, amdResource, 7*8, waitStart)
	r.remove(t, first)
	r.run(t, r.pod("three", box{more: corev1.ResourceList{amdResource: quantity(1)}}))
	r.waitAllocatable(t, amdResource, 7*8, waitStart)
	r.remove(t, "two", "three")
	r.waitAllocatable(t, amdResource, 7*8+1, waitQuiet)
}

// renderNodes are the nodes in /dev/dri of a pod, sorted.
func (r *rig) renderNodes(t *testing.T, pod string) (nodes []string) {
	t.Helper()
	for path := range r.report(t, pod, "app").Open {
		if strings.HasPrefix(path, "/dev/dri/") {
			nodes = append(nodes, path)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// hasDriverDevices fails the test unless the driver's CDI spec has these devices, each
// with the one node given.
func (r *rig) hasDriverDevices(t *testing.T, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	spec, ok := r.specs(t)[cdi.DriverFile]
	if !ok {
		t.Fatalf("no %s", cdi.DriverFile)
	}
	for _, d := range spec.Devices {
		var paths []string
		for _, n := range d.ContainerEdits.DeviceNodes {
			paths = append(paths, n.Path)
		}
		if d.Name != cdi.CommonDevice {
			got[d.Name] = strings.Join(paths, " ")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("device nodes in the CDI spec (-want +got):\n%s", diff)
	}
}

// offeredIDs are the IDs of AMD's resource that the kubelet may hand out.
func (r *rig) offeredIDs(t *testing.T) (ids []string) {
	t.Helper()
	answer, err := podresources.NewPodResourcesListerClient(r.conn).
		GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range answer.GetDevices() {
		if d.GetResourceName() == amdResource {
			ids = append(ids, d.GetDeviceIds()...)
		}
	}
	return ids
}

// hasPartitions fails the test unless each pod holds and opens its one partition.
func (r *rig) hasPartitions(t *testing.T, want map[string]string) {
	t.Helper()
	held := r.held(t)
	for pod, id := range want {
		if diff := cmp.Diff([]string{id}, held[key(pod, "app")][amdResource]); diff != "" {
			t.Errorf("pod %s holds (-want +got):\n%s", pod, diff)
		}
		s, err := interpret(r.ask(t, pod, "app"), r.machine(t))
		if err != nil {
			t.Errorf("pod %s: %v", pod, err)
			continue
		}
		if diff := cmp.Diff([]string{id}, s.GPUs); diff != "" {
			t.Errorf("pod %s opens (-want +got):\n%s", pod, diff)
		}
	}
}
