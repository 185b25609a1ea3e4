package fabric_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

func TestUplinkDiscovery(t *testing.T) {
	t.Parallel()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(64, 16), Rails: 8})
	m := mapOf(fabric.ModeAuto, f)
	first := m.UplinkDiscovery()
	owner, most := map[string]string{}, 0
	for node, leaves := range first {
		most = max(most, len(leaves))
		for _, leaf := range leaves {
			owner[leaf] = node
		}
	}
	if len(owner) != 32 || most > 4 {
		t.Fatalf("%d leaves are assigned, up to %d to one node: %v", len(owner), most, first)
	}
	gone := owner[f.Leaf(1, 3, 0).ID]
	m.Remove(gone)
	second := map[string]string{}
	for node, leaves := range m.UplinkDiscovery() {
		for _, leaf := range leaves {
			second[leaf] = node
		}
	}
	for _, leaf := range slices.Sorted(maps.Keys(owner)) {
		if owner[leaf] == gone && second[leaf] == gone || owner[leaf] != gone && second[leaf] != owner[leaf] {
			t.Errorf("leaf %s went from %s to %s when %s left", leaf, owner[leaf], second[leaf], gone)
		}
	}
}
