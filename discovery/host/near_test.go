package host

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	facts "github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// rig builds a machine by PCIe switches.
type rig struct {
	machine.Machine
	bus int
}

// add hangs a function from bridges, under a root port of its own unless root is given.
func (r *rig) add(class, vendor, device, root string, bridges ...string) string {
	r.bus++
	address := fmt.Sprintf("0000:%02x:00.0", r.bus)
	r.PCI = append(r.PCI, machine.PCIFunction{
		Address: address, Class: class, Vendor: vendor, Device: device, Root: "pci0000:" + root, Upstream: bridges,
	})
	return address
}

// gpus hangs NVIDIA GPUs from bridges of a root.
func (r *rig) gpus(count int, root string, bridges ...string) {
	for range count {
		r.add("0x030200", "0x10de", "0x2330", root, bridges...)
	}
}

// hca hangs an HCA.
func (r *rig) hca(h machine.HCA, root string, bridges ...string) *rig {
	h.PCI = r.add("0x020000", h.Vendor, h.Device, root, bridges...)
	r.HCAs = append(r.HCAs, h)
	return r
}

// second is the second function of the last HCA's adapter.
func (r *rig) second(h machine.HCA) *rig {
	f := r.PCI[len(r.PCI)-1]
	f.Address = f.Address[:len(f.Address)-1] + "1"
	r.PCI = append(r.PCI, f)
	h.PCI = f.Address
	r.HCAs = append(r.HCAs, h)
	return r
}

func (r *rig) with(change func(r *rig)) *rig {
	change(r)
	return r
}

// eight is a machine of eight GPUs with a switch each, and an HCA beside each.
func eight(beside func(n int) machine.HCA) *rig {
	r := &rig{}
	for n := range 8 {
		r.gpus(1, fmt.Sprint(n), fmt.Sprint("bridge", n))
		r.hca(beside(n), fmt.Sprint(n), fmt.Sprint("bridge", n))
	}
	return r
}

func named(pattern, device, layer string, gbps float64) func(int) machine.HCA {
	return func(n int) machine.HCA { return hca(fmt.Sprintf(pattern, n), device, layer, gbps) }
}

func broadcom(h machine.HCA) machine.HCA {
	h.Vendor = "0x14e4"
	return h
}

func TestRolesNextToGPUs(t *testing.T) {
	const ib, eth = machine.InfiniBand, machine.Ethernet
	const cx6, cx6dx, cx7, bf3 = "0x101b", "0x101d", "0x1021", "0xa2dc"
	roce := named("mlx5_%d", cx7, eth, 400)
	for _, tt := range []struct {
		name string
		rig  *rig
		// fabric are the HCAs of that role, the others are storage.
		fabric []string
	}{
		{
			"eight RoCE rails, an idle port in InfiniBand mode",
			eight(roce).hca(down(hca("mlx5_8", cx7, ib, 0)), "f0", "f0"),
			railNames("mlx5_%d", 8),
		},
		{
			"H20: bonds beside the GPUs, 34 plain HCAs for storage",
			eight(named("mlx5_bond_%d", bf3, eth, 400)).with(func(r *rig) {
				for n := range 34 {
					r.hca(hca(fmt.Sprintf("mlx5_%d", n), cx6dx, eth, 100), "f0", "f0")
				}
			}),
			railNames("mlx5_bond_%d", 8),
		},
		{
			"eight rails of 200 Gb/s, storage of 400",
			eight(named("mlx5_%d", cx6, ib, 200)).hca(hca("mlx5_8", cx7, ib, 400), "f0", "f0"),
			railNames("mlx5_%d", 8),
		},
		{
			"one rail in Ethernet mode",
			eight(func(n int) machine.HCA {
				return hca(fmt.Sprintf("mlx5_%d", n), cx7, map[bool]string{true: eth, false: ib}[n == 3], 400)
			}),
			railNames("mlx5_%d", 8),
		},
		{
			"one slower spare",
			eight(func(n int) machine.HCA {
				if n == 3 {
					return hca("mlx5_3", cx6, ib, 200)
				}
				return hca(fmt.Sprintf("mlx5_%d", n), cx7, ib, 400)
			}),
			railNames("mlx5_%d", 8),
		},
		{
			"BlueField-3 at the fabric's speed, beside a GPU",
			eight(roce).hca(hca("mlx5_8", bf3, eth, 400), "7", "bridge7"),
			railNames("mlx5_%d", 8),
		},
		{
			"one BlueField-3 rail among ConnectX-7",
			eight(func(n int) machine.HCA {
				return hca(fmt.Sprintf("mlx5_%d", n), map[bool]string{true: bf3, false: cx7}[n == 3], eth, 400)
			}),
			railNames("mlx5_%d", 8),
		},
		{
			"a NIC is gone beside one of two BlueField-3 for storage",
			(&rig{}).with(func(r *rig) {
				for n := range 8 {
					r.gpus(1, fmt.Sprint(n), "b")
					if n != 7 {
						r.hca(roce(n), fmt.Sprint(n), "b")
					}
					if n > 5 {
						r.hca(hca(fmt.Sprintf("storage_%d", n), bf3, eth, 400), fmt.Sprint(n), "b")
					}
				}
			}),
			railNames("mlx5_%d", 7),
		},
		{
			"BlueField-3 as rails",
			eight(named("mlx5_%d", bf3, eth, 400)).hca(hca("mlx5_8", cx7, eth, 400), "f0", "f0"),
			railNames("mlx5_%d", 8),
		},
		{
			"four bnxt ports down beside storage of 100 Gb/s",
			(&rig{}).with(func(r *rig) {
				for n := range 4 {
					r.gpus(2, fmt.Sprint(n), "b")
					r.hca(down(broadcom(hca(fmt.Sprintf("bnxt_re%d", n), "0x1751", eth, 0))), fmt.Sprint(n), "b")
				}
				r.hca(hca("mlx5_0", cx6dx, eth, 100), "f0", "f0")
			}),
			railNames("bnxt_re%d", 4),
		},
		{
			"all rails down beside storage that is up",
			eight(func(n int) machine.HCA { return down(hca(fmt.Sprintf("mlx5_%d", n), cx7, ib, 0)) }).
				hca(hca("mlx5_8", cx6, ib, 200), "f0", "f0"),
			railNames("mlx5_%d", 8),
		},
		{
			"slower storage in the switches of the GPUs",
			pairs(roce).with(func(r *rig) {
				for n := range 4 {
					r.hca(hca(fmt.Sprintf("storage_%d", n), cx6dx, eth, 200), fmt.Sprint(n), fmt.Sprint("bridge", n))
				}
			}),
			railNames("mlx5_%d", 8),
		},
		{
			"one root port over everything: storage has a switch without GPUs",
			(&rig{}).with(func(r *rig) {
				for n := range 8 {
					r.gpus(1, "0", "root port", fmt.Sprint("bridge", n))
					r.hca(roce(n), "0", "root port", fmt.Sprint("bridge", n))
				}
				r.hca(roce(8), "0", "root port", "bridge8")
			}),
			railNames("mlx5_%d", 8),
		},
		{
			"second ports without a cable",
			(&rig{}).with(func(r *rig) {
				for n := range 8 {
					r.gpus(1, fmt.Sprint(n), "b")
					r.hca(roce(n), fmt.Sprint(n), "b")
					r.second(down(hca(fmt.Sprintf("second_%d", n), cx7, eth, 0)))
				}
			}),
			railNames("mlx5_%d", 8),
		},
		{
			"GPUs of class 12, beside a QuickAssist and a screen",
			(&rig{}).with(func(r *rig) {
				for n := range 8 {
					r.add("0x120000", "0x1002", "0x74a1", fmt.Sprint(n), "b")
					r.hca(broadcom(hca(fmt.Sprintf("bnxt_re%d", n), "0x1760", eth, 400)), fmt.Sprint(n), "b")
				}
				r.add("0x030000", "0x1a03", "0x2000", "f0", "f0")
				r.add("0x0b4000", "0x8086", "0x4940", "f0", "f0")
				r.hca(broadcom(hca("bnxt_re8", "0x1760", eth, 400)), "f0", "f0")
			}),
			railNames("bnxt_re%d", 8),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			(&memory{}).assign(&tt.rig.Machine, nil, Vendors())
			if diff := cmp.Diff(tt.fabric, fabricNames(t, &tt.rig.Machine)); diff != "" {
				t.Errorf("fabric (-want +got):\n%s", diff)
			}
			if got := facts.RDMAOf(&tt.rig.Machine).Count; got != len(tt.fabric) {
				t.Errorf("label rdma.hca.count is %d, want %d", got, len(tt.fabric))
			}
		})
	}
}

// TestGPUThatLeftTheBus: no role and no rail changes because a GPU is gone when the daemon starts.
func TestGPUThatLeftTheBus(t *testing.T) {
	for _, name := range machines.Names(t) {
		all := machines.Load(t, name)
		vpd := map[string]sysfs.VPD{}
		for _, h := range all.HCAs {
			vpd[h.PCI] = sysfs.VPD{SwitchManagement: h.Role == machine.RoleNVSwitch}
		}
		(&memory{}).assign(all, vpd, Vendors())
		rails := affinity.Rails(all)
		for i := range 2 * len(all.GPUs) {
			gone := all.GPUs[i/2 : min(i/2+1+i%2, len(all.GPUs))] // One, or two neighbors.
			is := func(address string) bool {
				return slices.ContainsFunc(gone, func(g machine.GPU) bool { return g.PCI == address })
			}
			m := machines.Load(t, name)
			m.GPUs = slices.DeleteFunc(m.GPUs, func(g machine.GPU) bool { return is(g.PCI) })
			m.PCI = slices.DeleteFunc(m.PCI, func(f machine.PCIFunction) bool { return is(f.Address) })
			(&memory{}).assign(m, vpd, Vendors())
			if diff := cmp.Diff(rolesOf(all), rolesOf(m)); diff != "" {
				t.Errorf("%s without GPU %d, %d GPUs: roles (-before +now):\n%s", name, i/2, len(gone), diff)
			}
			if diff := cmp.Diff(rails, affinity.Rails(m)); diff != "" {
				t.Errorf("%s without GPU %d, %d GPUs: rails (-before +now):\n%s", name, i/2, len(gone), diff)
			}
		}
	}
}

// pairs is a machine of four switches with two GPUs and two HCAs each.
func pairs(beside func(n int) machine.HCA) *rig {
	r := &rig{}
	for n := range 4 {
		r.gpus(2, fmt.Sprint(n), fmt.Sprint("bridge", n))
		r.hca(beside(2*n), fmt.Sprint(n), fmt.Sprint("bridge", n))
		r.hca(beside(2*n+1), fmt.Sprint(n), fmt.Sprint("bridge", n))
	}
	return r
}

func railNames(pattern string, count int) (list []string) {
	for n := range count {
		list = append(list, fmt.Sprintf(pattern, n))
	}
	return list
}

// fabricNames are the HCAs of role fabric; all others must be of role storage.
func fabricNames(t *testing.T, m *machine.Machine) (list []string) {
	t.Helper()
	for name, role := range rolesOf(m) {
		switch role {
		case machine.RoleFabric:
			list = append(list, name)
		case machine.RoleStorage:
		default:
			t.Errorf("%s has role %s", name, role)
		}
	}
	slices.SortFunc(list, machine.CompareNames)
	return list
}

// Where nothing shares a switch, a link decides only while it is up.
func TestRolesWithoutSwitches(t *testing.T) {
	const ib, eth = machine.InfiniBand, machine.Ethernet
	const cx7, bf3 = "0x1021", "0xa2dc"
	rails := numbered("mlx5_%d", 0, 7, cx7, eth, 400)
	for _, tt := range []struct {
		name    string
		machine machine.Machine
		fabric  []string
	}{
		{"an idle port in InfiniBand mode", all(rails, []machine.HCA{down(hca("mlx5_8", cx7, ib, 0))}), railNames("mlx5_%d", 8)},
		{"BlueField-3 as fast as the fabric", all(rails, []machine.HCA{hca("mlx5_8", bf3, eth, 400)}), railNames("mlx5_%d", 8)},
		{"BlueField-3 only", all([]machine.HCA{hca("mlx5_0", bf3, eth, 400)}), railNames("mlx5_%d", 1)},
		{"ports down of an unknown model", all([]machine.HCA{
			down(broadcom(hca("bnxt_re0", "0x1751", eth, 0))), hca("mlx5_0", "0x101d", eth, 100),
		}), []string{"mlx5_0"}},
		{"VPI: one port InfiniBand and down, the other Ethernet and up", all([]machine.HCA{
			{Name: "mlx4_0", Vendor: sysfs.VendorMellanox, Device: "0x1007", Ports: []machine.Port{
				{Number: 1, LinkLayer: ib, State: machine.PortDown, RateGbps: new(10.0)},
				{Number: 2, LinkLayer: eth, State: machine.PortActive, RateGbps: new(40.0)},
			}},
			hca("mlx5_0", cx7, eth, 400),
		}), []string{"mlx5_0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			(&memory{}).assign(&tt.machine, nil, Vendors())
			if diff := cmp.Diff(tt.fabric, fabricNames(t, &tt.machine)); diff != "" {
				t.Errorf("fabric (-want +got):\n%s", diff)
			}
		})
	}
}

// A virtual function is what its physical one is, whatever model it is.
func TestRoleOfVirtualFunctions(t *testing.T) {
	r := eight(named("mlx5_%d", "0x1021", machine.InfiniBand, 400))
	r.hca(hca("mlx5_8", "0x101d", machine.Ethernet, 100), "f0", "f0")
	for n, of := range []int{0, 8} {
		vf := down(hca(fmt.Sprintf("vf%d", n), "0x101e", machine.InfiniBand, 0))
		vf.PhysFn = r.HCAs[of].PCI
		r.HCAs = append(r.HCAs, vf)
	}
	(&memory{}).assign(&r.Machine, nil, Vendors())
	if diff := cmp.Diff(append(railNames("mlx5_%d", 8), "vf0"), fabricNames(t, &r.Machine)); diff != "" {
		t.Errorf("fabric (-want +got):\n%s", diff)
	}
}
