package kfd

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Generate implements [gpu.EditsGenerator]: a container gets /dev/kfd, which all
// GPUs share, and of each GPU or partition the render node and the card. The
// images have the libraries. The kernel closes the others: their render nodes
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

// add makes the device of a GPU or a partition, or names why there is none.
func (l *Library) add(out *gpu.Edits, uuid string, minor *int) {
	if minor == nil {
		out.Missing[uuid] = "its render node is not known"
		return
	}
	render := "renderD" + strconv.Itoa(*minor)
	paths := []string{"kfd", "dri/" + render}
	// The card has the same device in sysfs, and another number.
	names, err := l.fs.List("class/drm/" + render + "/device/drm")
	if err != nil {
		out.Missing[uuid] = err.Error()
		return
	}
	for _, name := range names {
		if number, ok := strings.CutPrefix(name, "card"); ok && strings.Trim(number, "0123456789") == "" {
			paths = append(paths, "dri/"+name)
		}
	}
	device := specs.Device{Name: uuid}
	for _, path := range paths {
		host := filepath.Join(l.devRoot, path)
		info, err := os.Lstat(host)
		if err == nil && info.Mode()&fs.ModeCharDevice == 0 {
			err = fmt.Errorf("%s is not a character device", host)
		}
		if err != nil {
			out.Missing[uuid] = err.Error()
			return
		}
		node := &specs.DeviceNode{Path: "/dev/" + path, Permissions: "rw"}
		if node.Path != host {
			node.HostPath = host
		}
		device.ContainerEdits.DeviceNodes = append(device.ContainerEdits.DeviceNodes, node)
	}
	out.Devices = append(out.Devices, device)
}
