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

// DRMDevice is the CDI device of a GPU whose driver has nodes below /dev/dri: the node
// control, which all its GPUs share, the render node with that minor number, and the
// cards among the names of the GPU's DRM devices in sysfs, with the groups that own
// them. devRoot is where /dev is.
func DRMDevice(uuid, devRoot, control string, minor int, names []string) (*specs.Device, error) {
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
			return nil, err
		}
		node := &specs.DeviceNode{Path: "/dev/" + path, Permissions: "rw"}
		if node.Path != host {
			node.HostPath = host
		}
		e.DeviceNodes = append(e.DeviceNodes, node)
		if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Gid != 0 && !slices.Contains(e.AdditionalGIDs, s.Gid) {
			e.AdditionalGIDs = append(e.AdditionalGIDs, s.Gid)
		}
	}
	return d, nil
}

// charDevice finds a character device.
func charDevice(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&fs.ModeCharDevice == 0 {
		err = fmt.Errorf("%s is not a character device", path)
	}
	return info, err
}
