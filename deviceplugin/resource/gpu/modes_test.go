package gpu_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
	"github.com/heddle-dev/heddle/test/machines"
)

// present are the modes of cards: by index why nobody new gets one, and which
// are not native.
type present struct {
	against map[int]string
	shared  map[int]bool
}

func (p present) Native(g *machine.GPU) (native bool, against string) {
	return !p.shared[g.Index], p.against[g.Index]
}

// TestCardsAreWhatTheyAreNow: the configuration wants all shared, and one still
// is native, because a pod has it.
func TestCardsAreWhatTheyAreNow(t *testing.T) {
	n := newNode(machines.Load(t, "dgx-h100"))
	n.config.Mode = config.ModeSGPU
	o := n.options("nvidia.com/gpu")
	modes := present{map[int]string{3: "moves to sgpu when ml/train ends"}, map[int]bool{}}
	for i := range 8 {
		modes.shared[i] = i != 3 && i != 5
	}
	o.Modes = modes
	r := gpu.New(o)
	got := map[string]bool{}
	for _, d := range r.Devices() {
		got[d.ID] = d.Healthy
	}
	held, free := n.machine.GPUs[3].UUID, n.machine.GPUs[5].UUID
	if diff := cmp.Diff(map[string]bool{held: false, free: true}, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{held: modes.against[3]}, r.Faults()); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	// What is wrong with the card itself comes first, and holds for MIG devices.
	n.machine.GPUs[3].Health = machine.Health{State: machine.Lost, Reason: "it fell off the bus"}
	n.machine.GPUs[5].MIG = machine.MIG{Enabled: true, Devices: []machine.MIGDevice{{UUID: "MIG-5", Profile: "1g.10gb"}}}
	n.config.MIG.Strategy = config.MIGMixed
	modes.against[5] = "cordoned"
	r.Refresh()
	if diff := cmp.Diff(map[string]string{held: "lost: it fell off the bus"}, r.Faults()); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}, gpu.Names(n.machine, &n.config, modes)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	o.Name = "nvidia.com/mig-1g.10gb"
	if diff := cmp.Diff(map[string]string{"MIG-5": "cordoned"}, gpu.New(o).Faults()); diff != "" {
		t.Errorf("faults of MIG devices (-want +got):\n%s", diff)
	}
}
