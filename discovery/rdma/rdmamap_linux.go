package rdma

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/Mellanox/rdmamap"

	"github.com/heddle-dev/heddle/api/machine"
)

// askRDMAMap asks rdmamap about the same devices, and notes where it sees
// others than heddle's reader: it is what other RDMA components of a node go by, and
// a difference explains their result from heddle's. It opens every device node's class
// entry for every device.
//
// rdmamap reads fixed places, kept in package variables. They are read here
// and never set, so a tree elsewhere is not checked.
func (r *Reader) askRDMAMap(hcas []machine.HCA) []machine.Skipped {
	if r.tree.Path(class) != rdmamap.RdmaClassDir || filepath.Join(r.dev, "infiniband") != rdmamap.RdmaDeviceDir {
		return nil
	}
	var notes []machine.Skipped
	note := func(name, format string, args ...any) {
		notes = append(notes, machine.Skipped{Name: name, Reason: fmt.Sprintf(format, args...)})
	}
	listed := guard(note, rdmamap.GetRdmaDeviceList)
	for i := range hcas {
		h := &hcas[i]
		// Entries that are directories are none of its devices.
		if r.tree.Link(class+"/"+h.Name) == "" {
			continue
		}
		if !slices.Contains(listed, h.Name) {
			note(h.Name, "rdmamap does not list it")
			continue
		}
		nodes := guard(note, func() []string { return rdmamap.GetRdmaCharDevices(h.Name) })
		if own := names(h.CharDevices); !slices.Equal(bare(nodes), own) {
			note(h.Name, "rdmamap finds the device nodes %v, sysfs %v", bare(nodes), own)
		}
	}
	for _, name := range listed {
		if !slices.ContainsFunc(hcas, func(h machine.HCA) bool { return h.Name == name }) {
			note(name, "rdmamap lists it, the sysfs reader does not")
		}
	}
	return notes
}

// guard turns rdmamap's panics into a note, and its order (the directory's)
// into that of [machine.CompareNames]. It cuts the last byte off files that may be empty, and slices
// hardware addresses that may be short.
func guard(note func(name, format string, args ...any), call func() []string) (list []string) {
	defer func() {
		if p := recover(); p != nil {
			note("rdmamap", "panicked: %v", p)
			list = nil
		}
	}()
	list = call()
	slices.SortFunc(list, machine.CompareNames)
	return list
}

// bare drops the directory, and rdma_cm, which belongs to no device; ucm was
// removed from the kernel in 5.1.
func bare(paths []string) []string {
	list := make([]string, 0, len(paths))
	for _, p := range paths {
		if base := filepath.Base(p); base != "rdma_cm" && len(base) > 4 && base[:3] != "ucm" {
			list = append(list, base)
		}
	}
	slices.SortFunc(list, machine.CompareNames)
	return list
}
