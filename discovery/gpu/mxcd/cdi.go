package mxcd

import (
	"fmt"
	"path/filepath"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Generate implements [gpu.EditsGenerator]: a container gets /dev/mxcd, which all
// GPUs share, and of each GPU the card and the render node, with the groups that
// own them (MetaX's documents start containers with --group-add video). The images
// have the libraries.
func (l *Library) Generate(m *machine.Machine) (*gpu.Edits, error) {
	out := &gpu.Edits{Missing: map[string]string{}}
	for i := range m.GPUs {
		device, err := l.device(&m.GPUs[i])
		if err != nil {
			out.Missing[m.GPUs[i].UUID] = err.Error()
			continue
		}
		out.Devices = append(out.Devices, *device)
	}
	return out, nil
}

// Fingerprint implements [gpu.EditsGenerator].
func (l *Library) Fingerprint() string {
	return gpu.Fingerprint(filepath.Join(l.devRoot, "mxcd"), filepath.Join(l.devRoot, "dri", "*"))
}

func (l *Library) device(g *machine.GPU) (*specs.Device, error) {
	if g.Minor == nil {
		return nil, fmt.Errorf("%s/%s/drm has no render node", l.fs.Path("bus/pci/devices"), g.PCI)
	}
	names, err := l.fs.List("bus/pci/devices/" + g.PCI + "/drm")
	if err != nil {
		return nil, err
	}
	return gpu.DRMDevice(g.UUID, l.devRoot, "mxcd", *g.Minor, names)
}
