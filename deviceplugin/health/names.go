package health

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

// displayNames are what people call devices, by kind and identity.
type displayNames map[[2]string]string

// deviceNames takes the names of later machines over those of earlier ones.
func deviceNames(machines ...*machine.Machine) displayNames {
	names := displayNames{}
	for _, m := range machines {
		if m == nil {
			continue
		}
		for i := range m.GPUs {
			names[[2]string{"GPU", m.GPUs[i].UUID}] = gpuName(&m.GPUs[i])
		}
		for i, id := range m.HCAIDs() {
			names[[2]string{"HCA", id}] = hcaName(&m.HCAs[i])
		}
	}
	return names
}

func (n displayNames) of(kind, id string) string {
	if name, ok := n[[2]string{kind, id}]; ok {
		return name
	}
	return kind + " " + id
}

func gpuName(g *machine.GPU) string { return fmt.Sprintf("GPU %d (%s, %s)", g.Index, g.PCI, g.UUID) }

func hcaName(h *machine.HCA) string {
	if h.PCI == "" {
		return h.Name
	}
	return fmt.Sprintf("%s (%s)", h.Name, h.PCI)
}
