package kfd

import (
	"path/filepath"
	"strconv"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Generate implements [gpu.EditsGenerator]: a container gets /dev/kfd, which all
// GPUs share, and of each GPU or partition the render node and the card, with the
// groups that own them. The images have the libraries. The kernel closes the others: their render nodes
// cannot be opened.
func (l *Library) Generate(m *machine.Machine) (*gpu.Edits, error) {
	out := &gpu.Edits{Missing: map[string]string{}}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if len(g.MIG.Devices) == 0 {
			l.add(out, g.UUID, g.Minor)
		}
		for j := range g.MIG.Devices {
			l.add(out, g.MIG.Devices[j].UUID, g.MIG.Devices[j].Minor)
		}
	}
	return out, nil
}

// Fingerprint implements [gpu.EditsGenerator].
func (l *Library) Fingerprint() string {
	return gpu.Fingerprint(filepath.Join(l.devRoot, "kfd"), filepath.Join(l.devRoot, "dri", "*"))
}

// add makes the device of a GPU or a partition, or returns why it cannot.
func (l *Library) add(out *gpu.Edits, uuid string, minor *int) {
	if minor == nil {
		out.Missing[uuid] = "its render node is not known"
		return
	}
	names, err := l.fs.List("class/drm/renderD" + strconv.Itoa(*minor) + "/device/drm")
	if err != nil {
		out.Missing[uuid] = err.Error()
		return
	}
	out.AddDRM(uuid, l.devRoot, "kfd", *minor, names)
}
