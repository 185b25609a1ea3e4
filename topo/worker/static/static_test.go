package static

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/topo/worker"
)

var update = flag.Bool("update", false, "write the results in testdata")

const good = `version: v1
groups:
  dragonfly-2: switchbox-1
  dragonfly-3: switchbox-1
nodes:
  n1: {path: [switchbox-1, dragonfly-2]}
  n2:
    group: dragonfly-3
    rails:
      0: leaf-a
      1: {switch: 2c5eab0300c26480, name: leaf b, port: 7}
      0/1: leaf-c
  n3: {rails: {}}
`

func TestParse(t *testing.T) {
	got, err := Parse("f", []byte(good))
	want := map[string]worker.Place{
		"n1": {Path: []string{"switchbox-1", "dragonfly-2"}},
		"n2": {Path: []string{"switchbox-1", "dragonfly-3"}, Rails: []v1alpha1.Rail{
			{Rail: 0, Switch: &v1alpha1.Switch{ID: "leaf-a"}},
			{Rail: 0, Plane: 1, Switch: &v1alpha1.Switch{ID: "leaf-c"}},
			{Rail: 1, Switch: &v1alpha1.Switch{ID: "2c5eab0300c26480", Name: "leaf b"}, SwitchPort: "7"},
		}},
		"n3": {},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestDocumentation reads the example of docs/concepts/topology.md.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/concepts/topology.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\nversion: v1\ngroups:")
	text, _, _ = strings.Cut("version: v1\ngroups:"+text, "```")
	nodes, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(nodes["node-2"].Path, nodes["node-1"].Path); diff != "" || len(nodes["node-3"].Rails) != 3 {
		t.Errorf("group and path differ: %s\n%+v", diff, nodes["node-3"].Rails)
	}
}

// TestFaults: what is wrong with one node takes no other away.
func TestFaults(t *testing.T) {
	golden.Rows(t, "testdata/faults.txt", *update, func(text string) string {
		nodes, err := Parse("f", []byte(text))
		if err == nil {
			t.Fatalf("accepted:\n%s", text)
		}
		for name := range nodes {
			if !strings.Contains(err.Error(), ": nodes.") || strings.Contains(err.Error(), "nodes."+name) {
				t.Errorf("%s has a place", name)
			}
		}
		return err.Error()
	})
}

// A line of one node that is wrong is named, and costs no other node its place.
func TestOneBadNode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(file, []byte("version: v1\ngroups: {c: d}\nnodes:\n  n1: {group: a}\n  n2: {group: b, rails: {x: y}}\n  n3: {group: c}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	q := worker.Query{Node: "n1", Topology: config.Default().Topology}
	q.Topology.StaticFile = config.AbsolutePath(file)
	for node, path := range map[string][]string{"n1": {"a"}, "n2": nil, "n3": {"d", "c"}} {
		q.Node = node
		s := New(slog.New(slog.DiscardHandler))
		for range 2 {
			r := s.Discover(t.Context(), q)
			if !slices.Equal(r.Path, path) || (r.Stale == nil) != (path != nil) || !strings.Contains(fmt.Sprint(r.Skipped), "nodes.n2.rails.x") {
				t.Errorf("%s: %+v", node, r)
			}
		}
	}
}

func TestSourceKeepsTheLastGoodFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "topology.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	topology := config.Default().Topology
	topology.StaticFile = config.AbsolutePath(file)
	port := func(id string, rail, plane int32, role machine.Role) worker.Port {
		return worker.Port{Rail: v1alpha1.Rail{ID: id, Port: 1, Rail: rail, Plane: plane, Role: string(role)}}
	}
	q := worker.Query{Node: "n2", Topology: topology, Ports: []worker.Port{
		port("a", 0, 0, machine.RoleFabric), port("b", 0, 1, machine.RoleFabric), port("s", 0, 0, machine.RoleStorage),
	}}
	s := New(slog.New(slog.DiscardHandler))
	if r := s.Discover(t.Context(), q); r.NoPath != worker.Unavailable || len(r.Skipped) != 1 {
		t.Errorf("no file: %+v", r)
	}
	write(good)
	want := worker.Report{
		Path: []string{"switchbox-1", "dragonfly-3"},
		Links: []worker.Link{
			{PortKey: worker.PortKey{ID: "a", Port: 1}, Switch: v1alpha1.Switch{ID: "leaf-a"}, Confidence: Confidence},
			{PortKey: worker.PortKey{ID: "b", Port: 1}, Switch: v1alpha1.Switch{ID: "leaf-c"}, Confidence: Confidence},
		},
		Skipped: []v1alpha1.Skipped{{Name: "static", Reason: "rail 1, plane 0: not on this node"}},
	}
	if diff := cmp.Diff(want, s.Discover(t.Context(), q)); diff != "" {
		t.Errorf("good file (-want +got):\n%s", diff)
	}
	write("version: v2\nnodes: {}\n")
	want.Skipped = append([]v1alpha1.Skipped{{Name: "static", Reason: `topology.yaml:1: version: unsupported version "v2": supported is v1`}}, want.Skipped...)
	bad := s.Discover(t.Context(), q)
	if bad.Stale == nil || bad.Stale.Since.IsZero() || bad.Stale.Reason != want.Skipped[0].Reason {
		t.Errorf("bad file: stale %+v", bad.Stale)
	}
	bad.Stale = nil
	if diff := cmp.Diff(want, bad); diff != "" {
		t.Errorf("bad file (-want +got):\n%s", diff)
	}
	write("version: v1\nnodes: {}\n")
	if diff := cmp.Diff(worker.Report{}, s.Discover(t.Context(), q)); diff != "" {
		t.Errorf("file without the node (-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("version: v1\ngroups: {a: b, b: a}\nnodes: {n: {group: a}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		nodes, err := Parse("f", b)
		for name, n := range nodes {
			if err != nil || len(n.Path) > worker.MaxPath {
				t.Errorf("%s: %d groups, %v", name, len(n.Path), err)
			}
		}
	})
}
