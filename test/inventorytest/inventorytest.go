// Package inventorytest makes inventories of nodes on which nothing is on its way.
package inventorytest

import (
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// Configured is the inventory of a node on which every GPU is in the mode that
// the configuration wants, and as healthy as the scan has it.
func Configured(m *machine.Machine, c *config.NodeConfig) *inventory.Inventory {
	gpus := make(map[string]inventory.GPU, len(m.GPUs))
	for i := range m.GPUs {
		gpus[m.GPUs[i].UUID] = inventory.GPU{Mode: inventory.Wanted(c, &m.GPUs[i])}
	}
	return inventory.New(m, c, gpus, nil)
}
