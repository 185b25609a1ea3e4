package pool

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/test/machines"
)

// claimed is the inventory of a machine whose GPUs are all in mode claims; edit changes one GPU.
func claimed(m *machine.Machine, edit func(uuid string, g *inventory.GPU)) *inventory.Inventory {
	c := config.Default()
	c.Mode = config.ModeClaims
	c = c.For(m)
	gpus := map[string]inventory.GPU{}
	for i := range m.GPUs {
		g := inventory.GPU{Mode: config.ModeClaims}
		if edit != nil {
			edit(m.GPUs[i].UUID, &g)
		}
		gpus[m.GPUs[i].UUID] = g
	}
	return inventory.New(m, &c, gpus, map[string]string{})
}

// The slices of every machine keep the limits of the API, and every name leads back to its device.
func TestSlicesOfMachines(t *testing.T) {
	for _, name := range machines.Names(t) {
		t.Run(name, func(t *testing.T) {
			m := machines.Load(t, name)
			inv := claimed(m, nil)
			p := Of(inv)
			sets, names := map[string]bool{}, map[string]bool{}
			all := p.Slices()
			for _, s := range all {
				if len(s.SharedCounters) > resourceapi.ResourceSliceMaxCounterSets || len(s.Devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
					t.Errorf("a slice of %d devices and %d counter sets", len(s.Devices), len(s.SharedCounters))
				}
				for _, c := range s.SharedCounters {
					sets[c.Name] = true
				}
			}
			whole := 0
			for _, s := range all {
				for i := range s.Devices {
					d := &s.Devices[i]
					own, ok := p.Find(d.Name)
					if !ok || names[d.Name] || len(d.Name) > maxName || strings.Trim(d.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
						t.Errorf("device %q: found %t", d.Name, ok)
					}
					names[d.Name] = true
					if len(d.Attributes)+len(d.Capacity) > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
						t.Errorf("device %s has %d attributes", d.Name, len(d.Attributes))
					}
					for _, c := range d.ConsumesCounters {
						if !sets[c.CounterSet] {
							t.Errorf("device %s consumes of %q, which no slice has", d.Name, c.CounterSet)
						}
					}
					if own.Type == claims.GPU {
						whole++
					}
				}
			}
			want := 0
			for i := range inv.Machine.GPUs {
				if g := &inv.Machine.GPUs[i]; !g.MIG.Enabled && g.UUID != "" && inv.GPUs[g.UUID].Mode == config.ModeClaims {
					want++
				}
			}
			if whole > len(m.GPUs) || whole == 0 && want > 0 {
				t.Errorf("%d whole GPUs of %d", whole, want)
			}
		})
	}
}

// On a machine with an HCA beside each GPU, the pairs have different HCAs, in the order of the rails.
func TestPairs(t *testing.T) {
	p := Of(claimed(machines.Load(t, "dgx-h100"), nil))
	var rails []int64
	hcas := map[string]bool{}
	for _, s := range p.Slices() {
		for i := range s.Devices {
			d := &s.Devices[i]
			if device, _ := p.Find(d.Name); device.Type == claims.Pair {
				hcas[device.HCA] = true
				rails = append(rails, *d.Attributes[claims.AttributeRail].IntValue)
			}
		}
	}
	if !slices.Equal(rails, []int64{0, 1, 2, 3, 4, 5, 6, 7}) || len(hcas) != 8 {
		t.Errorf("rails %v, %d HCAs", rails, len(hcas))
	}
}

// A fault changes one slice; a drained device ends its pods; an HCA that is down withdraws its pair and not its GPU.
func TestTaints(t *testing.T) {
	m := machines.Load(t, "dgx-h100")
	sick := m.GPUs[3].UUID
	well := Of(claimed(m, nil))
	inv := claimed(m, func(uuid string, g *inventory.GPU) {
		if uuid == sick {
			g.Unhealthy = "XID 79"
		}
	})
	inv.Config.Health.Remediation = config.RemediationDrain
	now := Of(inv)
	changed := 0
	for i, s := range now.Slices() {
		if gocmp.Equal(s, well.Slices()[i]) {
			continue
		}
		changed++
		for j := range s.Devices {
			d := &s.Devices[j]
			device, _ := now.Find(d.Name)
			want := []resourceapi.DeviceTaint{{Key: claims.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoExecute}}
			if device.GPU == "" || device.Type == claims.Monitor {
				want = nil
			}
			if diff := gocmp.Diff(want, d.Taints); diff != "" {
				t.Errorf("taints of %s (-want +got):\n%s", d.Name, diff)
			}
		}
	}
	if changed != 1 {
		t.Errorf("%d slices changed", changed)
	}
	// What withdraws the node evicts nothing but pods with the sick GPU.
	rejecting := inv.AllUnavailable("3 pods in a row did not start")
	ends := map[string]bool{}
	for _, s := range Of(rejecting).Slices() {
		for i := range s.Devices {
			device, _ := now.Find(s.Devices[i].Name)
			for _, taint := range s.Devices[i].Taints {
				ends[device.GPU] = ends[device.GPU] || taint.Effect == resourceapi.DeviceTaintEffectNoExecute
			}
			if withdraws := len(s.Devices[i].Taints) > 0; withdraws == (device.Type == claims.Monitor) {
				t.Errorf("taints of %s: %v", s.Devices[i].Name, s.Devices[i].Taints)
			}
		}
	}
	for uuid, end := range ends {
		if end != (uuid == sick) {
			t.Errorf("pods with %s end: %t", uuid, end)
		}
	}
	for _, s := range now.Plain() {
		for i := range s.Devices {
			device, _ := now.Find(s.Devices[i].Name)
			if d := &s.Devices[i]; device.GPU == sick && device.Type != claims.Monitor || device.Type == claims.Pair || d.Taints != nil || d.ConsumesCounters != nil || d.Capacity != nil {
				t.Errorf("an old API server gets %+v", d)
			}
		}
	}

	inv = claimed(m, nil)
	down := cmp.Or(m.HCAs[0].Name)
	for i := range m.HCAs {
		if m.HCAs[i].Role == machine.RoleFabric {
			down = m.HCAs[i].Name
			break
		}
	}
	inv.HCAs[down] = "port 1 is DOWN"
	withdrawn := map[claims.Type]int{}
	for device, why := range Of(inv).Devices() {
		if why != "" {
			withdrawn[device.Type]++
		}
	}
	if diff := gocmp.Diff(map[claims.Type]int{claims.Pair: 1, claims.HCA: 1}, withdrawn); diff != "" {
		t.Errorf("devices withdrawn (-want +got):\n%s", diff)
	}
}

// A pair has each taint once, although its GPU and its HCA have the same one.
func TestTaintsOfPairs(t *testing.T) {
	m := machines.Load(t, "dgx-h100")
	inv := claimed(m, func(_ string, g *inventory.GPU) { g.Unhealthy, g.Unavailable = "XID 79", "cordoned" })
	for i := range m.HCAs {
		inv.HCAs[m.HCAs[i].Name] = "port 1 is DOWN"
	}
	p := Of(inv)
	for _, s := range p.Slices() {
		for i := range s.Devices {
			device, _ := p.Find(s.Devices[i].Name)
			if n := len(s.Devices[i].Taints); device.Type == claims.Pair && n != 2 {
				t.Errorf("%s has the taints %v", device.Name, s.Devices[i].Taints)
			}
		}
	}
}

// Only GPUs in mode claims are published; a node without one publishes an empty pool.
func TestOtherModes(t *testing.T) {
	m := machines.Load(t, "dgx-h100")
	p := Of(claimed(m, func(uuid string, g *inventory.GPU) {
		if uuid != m.GPUs[0].UUID {
			g.Mode = config.ModeNative
		}
	}))
	gpus := 0
	for device := range p.Devices() {
		if device.Type == claims.GPU {
			gpus++
		}
	}
	if gpus != 1 {
		t.Errorf("%d GPUs", gpus)
	}
	none := Of(claimed(m, func(_ string, g *inventory.GPU) { g.Mode = config.ModeNative }))
	if s := none.Slices(); len(s) != 1 || len(s[0].Devices) != 0 || len(none.Devices()) != 0 {
		t.Errorf("slices without a GPU in mode claims: %+v", s)
	}
}
