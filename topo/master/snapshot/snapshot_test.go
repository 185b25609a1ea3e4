package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

func text(t *testing.T, v *snapshot.Snapshot) string {
	t.Helper()
	d, err := v.TopologyDocument()
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(d.Gzip))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b)) != d.Size {
		t.Errorf("size %d of %d bytes", d.Size, len(b))
	}
	return string(b)
}

func TestDocumentIsWhatEncodingJSONWrites(t *testing.T) {
	levels := fabric.Preset(fabric.ModeSwitchbox, 0)
	since := time.Unix(1_700_000_000, 0)
	for _, n := range []int{0, 1, 5} {
		m := fabric.New(fabric.Config{Levels: levels})
		nodes := map[string]*informers.NodeState{}
		for i := range n {
			name := fmt.Sprintf("n<%d>", i)
			m.Put(fabric.Node{Name: name, Ready: i != 2, Since: since, Report: fabric.Read(&v1alpha1.NodeTopologySpec{
				Path: []string{fmt.Sprint("switchbox-", i/4), fmt.Sprint("dragonfly-", i/2)}, PathSource: v1alpha1.SourceStatic,
				Rails: []v1alpha1.Rail{{HCA: "mlx5_0", ID: "0000:18:00.0", Role: "fabric", Port: 1, LinkState: v1alpha1.LinkDown}},
			})})
			nodes[name] = &informers.NodeState{
				Name: name, Node: &informers.Node{Name: name, Ready: i != 2, GPUs: 8, Cordoned: i == 1}, Used: int32(i),
			}
		}
		all := snapshot.Snapshot{Tree: m.Snapshot(since), Levels: levels, Nodes: table(nodes), CountsPods: true}
		if n == 1 {
			all.StaleSince = since.UTC()
		}
		v := snapshot.New(all)
		got := text(t, v)
		var decoded snapshot.Topology
		strict := json.NewDecoder(bytes.NewReader([]byte(got)))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&decoded); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(again)+"\n", got); diff != "" {
			t.Errorf("%d nodes (-encoding/json +document):\n%s", n, diff)
		}
		if (n == 1) != decoded.StaleSince.Equal(since) {
			t.Errorf("%d nodes: stale since %v", n, decoded.StaleSince)
		}
		if n == 5 {
			// n1 is cordoned and n2 not ready: 8 + 0 + 0 + 8-3 + 8-4.
			if diff := cmp.Diff(snapshot.GPUs{Free: new(17), Offered: 40, Total: 40}, decoded.GPUs); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
			if len(decoded.Findings) != 5 || decoded.Nodes != (fabric.Count{Degraded: 4, NotReady: 1}) {
				t.Errorf("findings %v, nodes %+v", decoded.Findings, decoded.Nodes)
			}
		}
	}
}

// JSON has the years 0 to 9999 alone, and RFC 3339 other zones than UTC: the times of one node, or of
// one pod on it, must not take the answers about all others.
func TestTimesThatJSONHasNot(t *testing.T) {
	for _, far := range []string{"9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00"} {
		at, err := time.Parse(time.RFC3339, far)
		if err != nil {
			t.Fatal(err)
		}
		all, when := fleet(t, 2, 2), metav1.NewTime(at)
		report := fabric.Read(&v1alpha1.NodeTopologySpec{
			Stale: []v1alpha1.StaleSource{{Source: v1alpha1.SourceLLDP, Since: when}},
			Rails: []v1alpha1.Rail{{ID: "a", Role: "fabric", Port: 1, LinkState: v1alpha1.LinkDown, Since: &when}},
		})
		m := fabric.New(fabric.Config{Levels: []fabric.Level{{Kind: "leaf", By: fabric.ByLeaf}}})
		m.Put(fabric.Node{Name: "odd", Since: at, Report: report, Heartbeat: at})
		all.Tree = m.Snapshot(time.Unix(1, 0))
		node := &informers.Node{Name: "odd", UID: "1", Since: at}
		all.Nodes = table(map[string]*informers.NodeState{
			"odd": {Name: "odd", Node: node, Report: &informers.Report{Report: report, Name: "odd", Owner: "1"}},
		})
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{wellknown.GangName: "g"}}}
		p.Spec.NodeName, p.Status.Phase, p.Status.StartTime = "odd", corev1.PodRunning, &when
		member, _ := gang.MemberOf(p, 8)
		all.Gangs = snapshot.Table[*informers.Gang]{}.With(map[string]*informers.Gang{
			member.Key(): {Name: member.Key(), Members: []*gang.Member{member}},
		})
		s := snapshot.New(all)
		n, _ := s.Node("odd", time.Unix(1, 0))
		_, topologyErr := s.TopologyDocument()
		_, gangErr := s.GangDocument()
		_, nodeErr := json.Marshal(n)
		if err := errors.Join(topologyErr, gangErr, nodeErr); err != nil {
			t.Errorf("%s: %v", far, err)
		}
	}
}

func TestTheSameGenerationIsNotEncodedAgain(t *testing.T) {
	m := fabric.New(fabric.Config{Levels: []fabric.Level{{Kind: "leaf", By: fabric.ByLeaf}}})
	all := snapshot.Snapshot{Generation: 1, Tree: m.Snapshot(time.Unix(1, 0))}
	v := snapshot.New(all)
	a, errA := v.TopologyDocument()
	b, errB := v.Next(all).TopologyDocument()
	all.Generation, all.Mapped = 2, 2
	c, errC := v.Next(all).TopologyDocument()
	if errA != nil || errB != nil || errC != nil || a != b || a == c || a.Tag != c.Tag {
		t.Errorf("documents %p, %p, %p with tags %s, %s", a, b, c, a.Tag, c.Tag)
	}
	v = v.Next(all)
	c, errC = v.TopologyDocument()
	all.Generation = 3 // Gangs changed, and nothing else.
	if d, err := v.Next(all).TopologyDocument(); errC != nil || err != nil || c != d {
		t.Errorf("a change of gangs alone makes another document: %v, %v", errC, err)
	}
}

func table(nodes map[string]*informers.NodeState) snapshot.Table[*informers.NodeState] {
	return snapshot.Table[*informers.NodeState]{}.With(nodes)
}

func TestTableWith(t *testing.T) {
	state := func(name string, used int32) *informers.NodeState {
		return &informers.NodeState{Name: name, Node: &informers.Node{Name: name}, Used: used}
	}
	all := map[string]*informers.NodeState{}
	for i := range 1000 {
		name := fmt.Sprint("n", i)
		all[name] = state(name, 0)
	}
	before := table(all)
	for name := range all {
		all[name] = state(name, 1)
	}
	all["n7"] = &informers.NodeState{Name: "n7"}
	all["a"], all["z"] = state("a", 1), state("z", 1)
	after := before.With(all)
	count := func(table snapshot.Table[*informers.NodeState]) (n, used int) {
		for _, s := range table {
			n, used = n+1, used+int(s.Used)
		}
		return n, used
	}
	if n, used := count(before); n != 1000 || used != 0 {
		t.Errorf("the table before has %d nodes, %d used", n, used)
	}
	if n, used := count(after); n != 1001 || used != 1001 {
		t.Errorf("the table after has %d nodes, %d used", n, used)
	}
	for name := range all {
		if s, ok := after.Get(name); ok != (name != "n7") || ok && s.Name != name {
			t.Errorf("%s: %v, %t", name, s, ok)
		}
	}
	if !slices.IsSortedFunc(after, func(a, b *informers.NodeState) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("not sorted")
	}
}
