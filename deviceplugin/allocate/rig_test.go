package allocate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
)

const (
	gpus  = "nvidia.com/gpu"
	slots = "nvidia.com/sgpu"
	hcas  = "rdma/hca_shared_devices_ib"
)

// rig is a node as values: what the kubelet gave containers, and what was decided.
type rig struct {
	t       *testing.T
	name    string
	machine *machine.Machine
	config  config.NodeConfig
	// change alters the inventory.
	change  func(*inventory.Inventory)
	pods    []*podresources.PodResources
	known   map[string]*corev1.Pod
	entries map[string]*Entry
	// warnings are those since they were last taken.
	warnings []Warning
}

func newRig(t *testing.T, name string, change ...func(*config.NodeConfig)) *rig {
	t.Helper()
	r := &rig{
		t: t, name: "gpu-1", machine: machines.Load(t, name), config: config.Default(), change: func(*inventory.Inventory) {},
		known: map[string]*corev1.Pod{}, entries: map[string]*Entry{},
	}
	for _, f := range change {
		if f != nil {
			f(&r.config)
		}
	}
	return r
}

// shareRig is a node that shares all its GPUs, unless the configuration is changed.
func shareRig(t *testing.T, change ...func(*config.NodeConfig)) *rig {
	t.Helper()
	return newRig(t, "dgx-h100", append([]func(*config.NodeConfig){func(c *config.NodeConfig) { c.Mode = config.ModeSGPU }}, change...)...)
}

func shareOnly(refs ...config.GPURef) func(*config.NodeConfig) {
	return func(c *config.NodeConfig) { c.SGPU.GPUs = refs }
}

func (r *rig) node() *Node {
	c := r.config
	inv := inventorytest.Configured(r.machine, &c)
	r.change(inv)
	return &Node{Name: r.name, Inventory: inv, Snapshot: kubelet.NewSnapshot(r.pods), Entries: r.entries}
}

// allocate is the kubelet's choice of device IDs for a container.
func (r *rig) allocate(pod, container, resource string, ids ...string) {
	r.t.Helper()
	ids = kubelet.SortIDs(ids)
	kind, err := KindOf(&r.config, resource)
	if err != nil {
		r.t.Fatal(err)
	}
	name := cdi.NewName(kind, resource, ids)
	r.entries[name.Device] = &Entry{Kind: kind, Device: name.Device, Resource: resource, IDs: ids}
	c := r.listed(pod, container)
	c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids})
}

// listed is a container as PodResources has it.
func (r *rig) listed(pod, container string) *podresources.ContainerResources {
	at := slices.IndexFunc(r.pods, func(p *podresources.PodResources) bool { return p.GetName() == pod })
	if at < 0 {
		at = len(r.pods)
		r.pods = append(r.pods, &podresources.PodResources{Namespace: "default", Name: pod})
	}
	p := r.pods[at]
	for _, c := range p.GetContainers() {
		if c.GetName() == container {
			return c
		}
	}
	p.Containers = append(p.Containers, &podresources.ContainerResources{Name: container})
	return p.Containers[len(p.Containers)-1]
}

// start decides what a container is given, as when it starts.
func (r *rig) start(pod, container string) (*Result, error) {
	n := r.node()
	c := kubelet.Container{Pod: kubelet.Pod{Namespace: "default", Name: pod}, Name: container}
	shares, result, err := n.Decide(c, n.Snapshot.Of(c), r.known[pod])
	decided := maps.Clone(r.entries)
	for _, e := range shares {
		decided[e.Device] = e
	}
	if err == nil {
		for _, g := range result.Grants {
			decided[g.Entry.Device] = g.Entry
		}
		r.warnings = append(r.warnings, result.Warnings...)
	}
	r.entries = decided
	return result, err
}

// mustStart is start of container main, which is given what it asks for.
func (r *rig) mustStart(pod string) *Result {
	r.t.Helper()
	result, err := r.start(pod, "main")
	if err != nil {
		r.t.Fatalf("container main of %s: %v", pod, err)
	}
	return result
}

// warned takes the warnings.
func (r *rig) warned() []string {
	var texts []string
	for _, w := range r.warnings {
		texts = append(texts, w.Reason+": "+w.Message)
	}
	r.warnings = nil
	return texts
}

// wants makes a pod known.
func (r *rig) wants(name string, annotations map[string]string, containers ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.Annotations, p.Spec.Containers = "default", name, annotations, containers
	r.known[name] = p
	return p
}

// consumer is a pod with a share, "vcore/GiB", on a slot of a GPU.
func (r *rig) consumer(name, text string, gpu, slot int) error {
	r.wants(name, nil, inventorytest.Sharer("main", text))
	r.allocate(name, "main", slots, r.slot(gpu, slot))
	_, err := r.start(name, "main")
	return err
}

// take gives a pod a share of a GPU, as heddle-scheduler chose.
func (r *rig) take(name, text string, gpu int) {
	r.t.Helper()
	r.wants(name, r.chosen("gpu-1", map[string][]allocation.Share{"main": {r.share(gpu, text)}}), inventorytest.Sharer("main", text))
	r.allocate(name, "main", slots, r.slot(gpu, 0))
	r.mustStart(name)
}

// sharesOf are the shares of a container.
func (r *rig) sharesOf(pod, container string) (all []allocation.Share) {
	for _, e := range r.entries {
		if e.Owner != nil && e.Owner.Pod.Name == pod && e.Owner.Name == container {
			all = append(all, e.Shares...)
		}
	}
	return all
}

// gpusOf are the GPUs of the shares of pod a's container main, by index.
func (r *rig) gpusOf() []int {
	var indices []int
	for _, s := range r.sharesOf("a", "main") {
		at := slices.IndexFunc(r.machine.GPUs, func(g machine.GPU) bool { return g.UUID == s.UUID })
		indices = append(indices, r.machine.GPUs[at].Index)
	}
	slices.Sort(indices)
	return indices
}

// nothingOvercommitted fails the test if a GPU is.
func (r *rig) nothingOvercommitted() []quota.GPU {
	r.t.Helper()
	all := r.node().SharedGPUs()
	for i := range all {
		if g := &all[i]; g.VCore > quota.Whole || g.UsedMiB > g.Room() {
			r.t.Errorf("GPU %d: %d %% and %d MiB are allocated", g.Index, g.VCore, g.UsedMiB)
		}
	}
	return all
}

// rejected is the kind of a rejection; empty for another error or none.
func rejected(err error) string {
	if r, ok := errors.AsType[*RejectedError](err); ok {
		return r.Kind
	}
	return ""
}

func (r *rig) uuid(index int) string {
	at := slices.IndexFunc(r.machine.GPUs, func(g machine.GPU) bool { return g.Index == index })
	return r.machine.GPUs[at].UUID
}

func (r *rig) uuids(indices ...int) []string {
	var all []string
	for _, i := range indices {
		all = append(all, r.uuid(i))
	}
	return all
}

// slot is the device ID of a share that names a GPU.
func (r *rig) slot(gpu, number int) string { return inventory.ReplicaID(r.uuid(gpu), number) }

// deviceIDs are the IDs of slots on HCAs by name: "mlx5_0" is slot 0, "mlx5_0/3"
// slot 3; what names no HCA stays.
func (r *rig) deviceIDs(names ...string) []string {
	ids := make([]string, len(names))
	for i, text := range names {
		name, number, _ := strings.Cut(text, "/")
		at := slices.IndexFunc(r.machine.HCAs, func(h machine.HCA) bool { return h.Name == name })
		if ids[i] = text; at >= 0 {
			slot, _ := strconv.Atoi(cmp.Or(number, "0"))
			ids[i] = inventory.ReplicaID(r.machine.HCAIDs()[at], slot)
		}
	}
	return ids
}

func (r *rig) hca(name string) *machine.HCA {
	at := slices.IndexFunc(r.machine.HCAs, func(h machine.HCA) bool { return h.Name == name })
	return &r.machine.HCAs[at]
}

func (r *rig) port(name, state string) { r.hca(name).Ports[0].State = state }

// names are the HCAs of a result, by the name of the RDMA device.
func names(result *Result) string {
	var all []string
	for i := range result.Devices.HCAs {
		all = append(all, result.Devices.HCAs[i].Name)
	}
	return strings.Join(all, ",")
}

// share is a part of a GPU, "vcore/GiB".
func (r *rig) share(gpu int, text string) allocation.Share {
	list := inventorytest.Limits(text)
	vcore, memory := list["nvidia.com/vcore"], list["nvidia.com/vmemory"]
	return allocation.Share{UUID: r.uuid(gpu), VCore: int(vcore.Value()), MemoryMiB: memory.Value() * 1024}
}

// chosen is heddle-scheduler's annotation: container, GPU, share.
func (r *rig) chosen(node string, shares map[string][]allocation.Share) map[string]string {
	a := allocation.Allocation{Version: allocation.Version, Node: node, Containers: shares}
	return map[string]string{"heddle.dev/sgpu-allocation": a.String()}
}

// chose is the annotation for container main.
func chose(node, text string, indices ...int) func(*rig) map[string]string {
	return func(r *rig) map[string]string {
		var shares []allocation.Share
		for _, i := range indices {
			shares = append(shares, r.share(i, text))
		}
		return r.chosen(node, map[string][]allocation.Share{"main": shares})
	}
}

func itoa(i int) string { return fmt.Sprint(i) }
