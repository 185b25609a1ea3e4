//go:build e2e && linux

package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

const vfResource = "rdma/vf"

// virtualFunctions adds two virtual functions of the first HCA. Their ports are down,
// as they are until a CNI plugin has put them into a pod's network.
func virtualFunctions(m *machine.Machine) {
	pf := m.HCAs[0]
	function := *m.Function(pf.PCI)
	for i := range 2 {
		vf := pf
		vf.Name, vf.PCI, vf.PhysFn = fmt.Sprintf("mlx5_vf%d", i), strings.TrimSuffix(pf.PCI, "0")+fmt.Sprint(i+1), pf.PCI
		vf.Ports = slices.Clone(pf.Ports)
		vf.Ports[0].State, vf.Ports[0].PhysState = machine.PortDown, "Disabled"
		vf.CharDevices = machine.CharDevices{UVerbs: []string{fmt.Sprintf("uverbs%d", 100+i)}}
		function.Address, function.PhysFn = vf.PCI, pf.PCI
		m.HCAs, m.PCI = append(m.HCAs, vf), append(m.PCI, function)
	}
}

// TestVirtualFunctionsByTheirAddress: the kubelet's PodResources, which Multus reads,
// has the PCI addresses of virtual functions that one pod has alone; the pod opens
// those and no others. The physical function is not offered beside them.
func TestVirtualFunctionsByTheirAddress(t *testing.T) {
	r := newRig(t, options{name: "vf", edit: virtualFunctions, config: quickHealth + `
rdma:
  resources:
  - {name: ` + hcaResource + `, sharers: 2}
  - {name: ` + vfResource + `, sharers: 1, selectors: {pfNames: [mlx5_0]}}
`})
	r.waitAllocatable(t, vfResource, 2)
	r.waitAllocatable(t, hcaResource, 7*2)
	m := r.machine(t)
	vfs := m.HCAs[len(m.HCAs)-2:]
	one := func(name string) *corev1.Pod {
		return r.pod(name, box{more: corev1.ResourceList{vfResource: quantity(1)}})
	}
	opened := map[string]string{}
	for _, name := range []string{"a", "b"} {
		r.run(t, one(name))
		ids := r.held(t)[key(name, "app")][vfResource]
		at := slices.IndexFunc(vfs, func(h machine.HCA) bool { return slices.Equal(ids, []string{h.PCI}) })
		if at < 0 {
			t.Fatalf("PodResources has %v for pod %s", ids, name)
		}
		if s := r.has(t, name, "app", 0, 1); !slices.Equal(s.HCAs, []string{vfs[at].Name}) {
			t.Errorf("pod %s holds %s and opens %v", name, ids[0], s.HCAs)
		}
		record := r.bindings(t)[key(name, "app")][0]
		var nodes []string
		for _, d := range r.specs(t)[record.spec()].Devices[0].ContainerEdits.DeviceNodes {
			nodes = append(nodes, strings.TrimPrefix(d.Path, "/dev/infiniband/"))
		}
		slices.Sort(nodes)
		if diff := cmp.Diff([]string{"rdma_cm", vfs[at].CharDevices.UVerbs[0]}, nodes); diff != "" {
			t.Errorf("CDI spec of pod %s (-want +got):\n%s", name, diff)
		}
		opened[ids[0]] = name
	}
	first := r.sees(t, "a", "app").HCAs
	if len(opened) != 2 {
		t.Errorf("two pods hold %v", opened)
	}
	if got, want := r.node(t).Annotations[wellknown.HCACounts],
		`{"version":1,"hcas":{"`+hcaResource+`":7,"`+vfResource+`":2}}`; got != want {
		t.Errorf("HCA counts %s, want %s", got, want)
	}
	// rdma-cni moves them into the pods' networks, where no scan sees their ports. The
	// node has them all the same, and a container that starts again has its own.
	r.edit(t, func(m *machine.Machine) {
		m.RDMA.NetnsMode = "exclusive"
		for i := len(m.HCAs) - 2; i < len(m.HCAs); i++ {
			h := &m.HCAs[i]
			*h = machine.HCA{Name: h.Name, PCI: h.PCI, PhysFn: h.PhysFn, Role: h.Role, Elsewhere: true, CharDevices: h.CharDevices}
		}
	})
	r.stopContainer(t, "a", "app")
	r.waitRestart(t, "a", "app", 1)
	if s := r.has(t, "a", "app", 0, 1); !slices.Equal(s.HCAs, first) {
		t.Errorf("pod a had %v and has %v", first, s.HCAs)
	}
	if got := r.allocatable(t, vfResource); got != 2 {
		t.Errorf("allocatable %s is %d while pods have both", vfResource, got)
	}
}
