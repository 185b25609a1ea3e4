package export_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/export"
)

// boxes is a tree of two switchboxes and a node in no group; the second switchbox
// holds a node beside its dragonfly.
func boxes(t *testing.T) (*fabric.Snapshot, export.Tiers) {
	t.Helper()
	levels := fabric.Preset(fabric.ModeSwitchbox, 0)
	m := fabric.New(levels)
	for name, path := range map[string][]string{
		"n1": {"switchbox-1", "dragonfly-1"}, "n2": {"switchbox-1", "dragonfly-1"}, "n3": {"switchbox-1", "dragonfly-1"},
		"n4": {"switchbox-1", "dragonfly-2"}, "n10": {"switchbox-2", "dragonfly-3"}, "n11": {"switchbox-2", "dragonfly-3"},
		"n12": {"switchbox-2"}, "cpu1": nil,
	} {
		n := fabric.Node{Name: name, Ready: true}
		if path != nil {
			n.Report = fabric.Read(&v1alpha1.NodeTopologySpec{Path: path, PathSource: v1alpha1.SourceStatic})
		}
		m.Put(n)
	}
	s := m.Snapshot(time.Unix(1, 0))
	return s, export.TiersOf(levels, s)
}

func TestSlurmTree(t *testing.T) {
	s, _ := boxes(t)
	var b bytes.Buffer
	if err := export.SlurmTree(&b, s); err != nil {
		t.Fatal(err)
	}
	want := `SwitchName=dragonfly-1 Nodes=n[1-3]
SwitchName=dragonfly-2 Nodes=n4
SwitchName=switchbox-1 Switches=dragonfly-[1-2]
SwitchName=dragonfly-3 Nodes=n[10-11]
SwitchName=switchbox-2-rest Nodes=n12
SwitchName=switchbox-2 Switches=dragonfly-3,switchbox-2-rest
SwitchName=heddle-root Switches=switchbox-[1-2]
# In no group: cpu1
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("topology.conf (-want +got):\n%s", diff)
	}
}

func TestSlurmBlock(t *testing.T) {
	s, tiers := boxes(t)
	for _, tt := range []struct{ kind, want string }{
		{"", `BlockName=dragonfly-1 Nodes=n[1-3]
BlockName=dragonfly-2 Nodes=n4
BlockName=dragonfly-3 Nodes=n[10-11]
BlockSizes=1,2
# In no group: cpu1,n12
`},
		{"switchbox", `BlockName=switchbox-1 Nodes=n[1-4]
BlockName=switchbox-2 Nodes=n[10-12]
BlockSizes=3,6
# In no group: cpu1
`},
	} {
		var b bytes.Buffer
		if err := export.SlurmBlock(&b, s, tiers, tt.kind); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, b.String()); diff != "" {
			t.Errorf("blocks of kind %q (-want +got):\n%s", tt.kind, diff)
		}
	}
	if err := export.SlurmBlock(&bytes.Buffer{}, s, tiers, "rack"); err == nil || !strings.Contains(err.Error(), "dragonfly, switchbox") {
		t.Errorf("a kind that is not there: %v", err)
	}
}

func TestHyperNodes(t *testing.T) {
	s, tiers := boxes(t)
	objects, err := export.HyperNodes(s, tiers, true)
	if err != nil {
		t.Fatal(err)
	}
	var last export.Object
	names := []string{}
	for _, o := range objects {
		names, last = append(names, o.Metadata.Name), o
	}
	if diff := cmp.Diff([]string{"switchbox-1", "dragonfly-1", "dragonfly-2", "switchbox-2", "dragonfly-3"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	got, err := json.Marshal(last.Spec)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"tier":1,"tierName":"dragonfly","members":[{"type":"Node","selector":{"exactMatch":{"name":"n10"}}},{"type":"Node","selector":{"exactMatch":{"name":"n11"}}}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	box, err := json.Marshal(objects[3].Spec)
	if err != nil || !strings.Contains(string(box), `{"type":"HyperNode","selector":{"exactMatch":{"name":"dragonfly-3"}}}`) {
		t.Errorf("switchbox-2 is %s, %v", box, err)
	}
}

func TestHostlist(t *testing.T) {
	for _, tt := range []struct {
		name  string
		hosts []string
		want  string
	}{
		{"none", nil, ""},
		{"one", []string{"a"}, "a"},
		{"a series", []string{"n3", "n1", "n2", "n7"}, "n[1-3,7]"},
		{"padded", []string{"n009", "n010", "n011"}, "n[009-011]"},
		{"not padded", []string{"n10", "n9", "n11"}, "n[9-11]"},
		{"both", []string{"n1", "n01", "n02", "n2"}, "n[01-02],n[1-2]"},
		{"two series and a name", []string{"a1", "b1", "a2", "x", "b2"}, "a[1-2],b[1-2],x"},
		{"digits inside", []string{"r1n1", "r1n2", "r2n1"}, "r1n[1-2],r2n1"},
		{"too long a number", []string{"n12345678901", "n12345678902"}, "n12345678901,n12345678902"},
		{"mixed beginnings", []string{"n9", "n10", "n1a", "n"}, "n,n[9-10],n1a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := export.Hostlist(tt.hosts); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			rand.Shuffle(len(tt.hosts), func(i, j int) { tt.hosts[i], tt.hosts[j] = tt.hosts[j], tt.hosts[i] })
			if got := export.Hostlist(tt.hosts); got != tt.want {
				t.Errorf("in another order: got %s, want %s", got, tt.want)
			}
		})
	}
}
