package gpu

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"tags.cncf.io/container-device-interface/specs-go"
)

// AddDRM adds the CDI device of a GPU with nodes below /dev/dri: the node
// control, which all its GPUs share, the render node with that minor number, and the
// cards among the names of the GPU's DRM devices in sysfs, with the groups that own
// them. devRoot is where /dev is. A device that cannot be made is missing; a node that root
// alone may open is a problem.
func (e *Edits) AddDRM(uuid, devRoot, control string, minor int, names []string) {
	device, closed, err := drmDevice(uuid, devRoot, control, minor, names)
	if err != nil {
		e.Missing[uuid] = err.Error()
		return
	}
	e.Devices = append(e.Devices, *device)
	for _, problem := range closed {
		if !slices.Contains(e.Problems, problem) {
			e.Problems = append(e.Problems, problem)
		}
	}
}

func drmDevice(
	uuid, devRoot, control string, minor int, names []string,
) (device *specs.Device, closed []string, err error) {
	paths := []string{control, "dri/renderD" + strconv.Itoa(minor)}
	for _, name := range names {
		// A card has the same device in sysfs as its render node, and another number.
		if number, ok := strings.CutPrefix(name, "card"); ok && strings.Trim(number, "0123456789") == "" {
			paths = append(paths, "dri/"+name)
		}
	}
	d := &specs.Device{Name: uuid}
	e := &d.ContainerEdits
	for _, path := range paths {
		host := filepath.Join(devRoot, path)
		info, err := charDevice(host)
		if err != nil {
			return nil, nil, err
		}
		node := &specs.DeviceNode{Path: "/dev/" + path, Permissions: "rw"}
		if node.Path != host {
			node.HostPath = host
		}
		e.DeviceNodes = append(e.DeviceNodes, node)
		s, ok := info.Sys().(*syscall.Stat_t)
		if ok && s.Gid != 0 && !slices.Contains(e.AdditionalGIDs, s.Gid) {
			e.AdditionalGIDs = append(e.AdditionalGIDs, s.Gid)
		}
		const group, others = 0o060, 0o006
		// Programs that compute do without the primary node.
		mode, primary := info.Mode().Perm(), strings.HasPrefix(path, "dri/card")
		if ok && !primary && mode&others != others && (mode&group != group || s.Gid == 0) {
			closed = append(closed, fmt.Sprintf("%s has mode %04o and group %d: only containers that run as root can open it; "+
				"a udev rule gives it a group", host, mode, s.Gid))
		}
	}
	return d, closed, nil
}

// charDevice finds a character device.
func charDevice(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&fs.ModeCharDevice == 0 {
		err = fmt.Errorf("%s is not a character device", path)
	}
	return info, err
}
