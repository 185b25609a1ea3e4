package mxcd

import (
	"fmt"
	"path/filepath"

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
		g := &m.GPUs[i]
		names, err := l.names(g)
		if err != nil {
			out.Missing[g.UUID] = err.Error()
			continue
		}
		out.AddDRM(g.UUID, l.devRoot, "mxcd", *g.Minor, names)
	}
	return out, nil
}

// Fingerprint implements [gpu.EditsGenerator].
func (l *Library) Fingerprint() string {
	return gpu.Fingerprint(filepath.Join(l.devRoot, "mxcd"), filepath.Join(l.devRoot, "dri", "*"))
}

// names lists the GPU's DRM devices.
func (l *Library) names(g *machine.GPU) ([]string, error) {
	if g.Minor == nil {
		return nil, fmt.Errorf("%s/%s/drm has no render node", l.fs.Path("bus/pci/devices"), g.PCI)
	}
	return l.fs.List("bus/pci/devices/" + g.PCI + "/drm")
}
