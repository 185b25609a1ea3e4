package gpu

import (
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
)

// Edits are what containers need of a driver.
type Edits struct {
	// Common is for every container with a GPU: libraries, control nodes.
	Common specs.ContainerEdits
	// Devices are named by UUID, and those of [Features] by their names.
	Devices []specs.Device
	// Missing are devices that could not be made, and why.
	Missing map[string]string
}

// EditsGenerator makes the content of a driver's static CDI spec. It may take
// seconds, or hang with the driver. Each vendor has one for real GPUs;
// [ReplayedEdits] is for those of a machine file.
type EditsGenerator interface {
	Generate(m *machine.Machine) (*Edits, error)
}

// Features are what containers with GPUs get besides, if the host has it.
type Features struct {
	// GDRCopy is /dev/gdrdrv, GDS the nodes of GPUDirect Storage.
	GDRCopy, GDS bool
	// IMEXChannels are numbers of IMEX channels.
	IMEXChannels []int
}

func (f *Features) channels() string {
	words := make([]string, len(f.IMEXChannels))
	for i, channel := range f.IMEXChannels {
		words[i] = strconv.Itoa(channel)
	}
	return strings.Join(words, ",")
}
