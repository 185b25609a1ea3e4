package export_test

import (
	"bytes"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/export"
)

// fleet has what one cluster may have: a dragonfly in a switchbox, a leaf group of
// two DGX, and three NVLink domains of two trays on two leaf groups of three, of
// which the second is across both; and a node without any.
func fleet(t *testing.T) (*fabric.Snapshot, export.Tiers) {
	t.Helper()
	levels := fabric.Preset(fabric.ModeAuto, 0)
	m := fabric.New(levels)
	put := func(name string, spec v1alpha1.NodeTopologySpec) {
		m.Put(fabric.Node{Name: name, Ready: true, Report: fabric.Read(&spec)})
	}
	on := func(leaf, domain string) v1alpha1.NodeTopologySpec {
		return v1alpha1.NodeTopologySpec{NVLinkDomain: domain, Rails: []v1alpha1.Rail{{
			ID: "0000:18:00.0", Role: "fabric", Switch: &v1alpha1.Switch{ID: leaf}, LinkState: v1alpha1.LinkActive,
		}}}
	}
	put("fly", v1alpha1.NodeTopologySpec{Path: []string{"switchbox-1", "dragonfly-1"}, PathSource: v1alpha1.SourceStatic})
	put("dgx1", on("dd", ""))
	put("dgx2", on("dd", ""))
	for i := range 6 {
		put(fmt.Sprintf("tray%d", i), on([]string{"aa", "bb"}[i/3], fmt.Sprint("x.", i/2)))
	}
	put("storage", v1alpha1.NodeTopologySpec{})
	s := m.Snapshot(time.Unix(1, 0))
	return s, export.TiersOf(levels, s)
}

// A label by kind means the same on every node.
func TestLabelsByKind(t *testing.T) {
	s, _ := fleet(t)
	const prefix = "heddle.dev/topology"
	tray := func(leaf, domain string) map[string]string {
		return map[string]string{
			prefix + ".leaf": "leaf-" + leaf, prefix + ".nvlink": "nvlink-" + domain, prefix + "-shape": "leaf.nvlink",
			"fabric.topograph.run/tier-0": "leaf-" + leaf, "accelerator.topograph.run/domain": "nvlink-" + domain,
		}
	}
	dgx := map[string]string{
		prefix + ".leaf": "leaf-dd", prefix + "-shape": "leaf",
		"fabric.topograph.run/tier-0": "leaf-dd",
	}
	want := map[string]map[string]string{
		"storage": {prefix + "-shape": "node"}, "dgx1": dgx, "dgx2": dgx,
		"tray0": tray("aa", "x.0"), "tray1": tray("aa", "x.0"), "tray2": tray("aa", "x.1"),
		"tray3": tray("bb", "x.1"), "tray4": tray("bb", "x.2"), "tray5": tray("bb", "x.2"),
		"fly": {
			prefix + ".switchbox": "switchbox-1", prefix + ".dragonfly": "dragonfly-1", prefix + "-shape": "switchbox.dragonfly",
			"fabric.topograph.run/tier-0": "dragonfly-1", "fabric.topograph.run/tier-1": "switchbox-1",
		},
	}
	got := maps.Collect(export.Labels(s, export.LabelSets{Kinds: true, Topograph: true}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if got := len(maps.Collect(export.Labels(s, export.LabelSets{}))["tray0"]); got != 0 {
		t.Errorf("without a set %d labels", got)
	}
}

// Every node has all labels of the Topology of its shape, and NVLink domains that
// cross leaf groups have one in which they are whole.
func TestTopologies(t *testing.T) {
	s, _ := fleet(t)
	all, err := export.Topologies("kueue.x-k8s.io/v1beta2", s)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, o := range all {
		spec, _ := o.Spec.(export.TopologySpec)
		for _, l := range spec.Levels {
			got[o.Metadata.Name] = append(got[o.Metadata.Name], l.NodeLabel)
		}
	}
	const host = "kubernetes.io/hostname"
	key := func(kind string) string { return "heddle.dev/topology." + kind }
	want := map[string][]string{
		"heddle-switchbox-dragonfly": {key("switchbox"), key("dragonfly"), host},
		"heddle-leaf":                {key("leaf"), host},
		"heddle-leaf-nvlink":         {key("leaf"), key("nvlink"), host},
		"heddle-nvlink":              {key("nvlink"), host},
		"heddle-node":                {host},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
}

// Slurm gets the fabric as a tree and whole NVLink domains as blocks.
func TestSlurmYAML(t *testing.T) {
	s, tiers := fleet(t)
	var b bytes.Buffer
	if err := export.SlurmYAML(&b, s, tiers); err != nil {
		t.Fatal(err)
	}
	want := `---
- topology: heddle-tree
  cluster_default: true
  tree:
    switches:
      - switch: "leaf-aa"
        nodes: tray[0-2]
      - switch: "leaf-bb"
        nodes: tray[3-5]
      - switch: "leaf-dd"
        nodes: dgx[1-2]
      - switch: "dragonfly-1"
        nodes: fly
      - switch: "switchbox-1"
        children: dragonfly-1
      - switch: "heddle-root"
        children: leaf-aa,leaf-bb,leaf-dd,switchbox-1
# In no group: storage
- topology: heddle-block
  cluster_default: false
  block:
    block_sizes:
      - 2
      - 4
    blocks:
      - block: "nvlink-x.0"
        nodes: tray[0-1]
      - block: "nvlink-x.2"
        nodes: tray[4-5]
      - block: "nvlink-x.1"
        nodes: tray[2-3]
# In no group: dgx[1-2],fly,storage
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("topology.yaml (-want +got):\n%s", diff)
	}
}
