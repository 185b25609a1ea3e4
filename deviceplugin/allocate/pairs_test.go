package allocate

import (
	"testing"

	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/test/machines"
)

// On every machine, a pair is the HCA that a container with that GPU and one HCA gets from the device plugin.
func TestPairsOfMachines(t *testing.T) {
	compared := 0
	for _, name := range machines.Names(t) {
		r := newRig(t, name)
		r.config = r.config.For(r.machine)
		pairs := Pairs(r.node().Inventory)
		ids := r.machine.HCAIDs()
		for i := range r.machine.GPUs {
			g := &r.machine.GPUs[i]
			pair, ok := pairs[i]
			if !ok || pair.Unhealthy != "" || g.UUID == "" || r.config.GPUResource(g) != gpus || len(g.MIG.Devices) > 0 {
				continue
			}
			r.pods, r.entries = nil, map[string]*Entry{}
			r.allocate("a", "main", gpus, g.UUID)
			r.allocate("a", "main", hcas, inventory.ReplicaID(ids[pair.Index], 0))
			result, err := r.start("a", "main")
			if err != nil || len(result.Devices.HCAs) != 1 {
				t.Fatalf("%s, GPU %d: %v", name, i, err)
			}
			if got := result.Devices.HCAs[0].ID; got != pair.ID {
				t.Errorf("%s, GPU %d: the pair has %s, and the device plugin gives %s", name, i, pair.ID, got)
			}
			compared++
		}
	}
	if compared < 100 {
		t.Errorf("only %d GPUs with an HCA", compared)
	}
}
