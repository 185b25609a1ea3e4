package rdma

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/Mellanox/rdmamap"
	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// rdmamap, by which other RDMA components of a node go, finds the same devices
// and nodes. It reads the places in its package's variables.
func TestRDMAMapAgrees(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	class := filepath.Join(tree.Sys(), "class")
	for variable, path := range map[*string]string{
		&rdmamap.RdmaClassDir: class + "/infiniband", &rdmamap.RdmaUmadDir: class + "/infiniband_mad",
		&rdmamap.RdmaUverbsDir: class + "/infiniband_verbs", &rdmamap.RdmaIbUcmDir: class + "/infiniband_cm",
		&rdmamap.RdmaDeviceDir: tree.Dev() + "/infiniband", &rdmamap.RdmaUcmDevice: tree.Dev() + "/infiniband/rdma_cm",
	} {
		before := *variable
		t.Cleanup(func() { *variable = before })
		*variable = path
	}
	bySysfs, byRDMAMap := map[string][]string{}, map[string][]string{}
	for _, h := range read(t, tree).HCAs {
		bySysfs[h.Name] = slices.Concat(h.CharDevices.ISSM, h.CharDevices.UMAD, h.CharDevices.UVerbs)
	}
	for _, name := range rdmamap.GetRdmaDeviceList() {
		for _, path := range rdmamap.GetRdmaCharDevices(name) {
			if base := filepath.Base(path); base != "rdma_cm" { // It belongs to no device.
				byRDMAMap[name] = append(byRDMAMap[name], base)
			}
		}
		slices.SortFunc(byRDMAMap[name], machine.CompareNames)
	}
	if diff := cmp.Diff(bySysfs, byRDMAMap); diff != "" || len(bySysfs) != 9 {
		t.Errorf("device nodes (-sysfs +rdmamap):\n%s", diff)
	}
}
