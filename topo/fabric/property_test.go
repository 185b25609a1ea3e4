package fabric_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// view is all that a snapshot has.
type view struct {
	Body, ETag string
	Nodes      fabric.Count
	Elements   []element
}

type element struct {
	Depth                   int
	Name, Kind, Key, Status string
	Nodes                   fabric.Count
	Reasons                 []fabric.Reason
	Findings                []fabric.Finding
	Rails                   []fabric.Rail
}

func viewOf(tb testing.TB, s *fabric.Snapshot) view {
	tb.Helper()
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		tb.Fatal(err)
	}
	v := view{Body: b.String(), ETag: s.ETag(), Nodes: s.Nodes}
	for holders, e := range s.All() {
		one := element{
			Depth: len(holders), Name: e.Name, Kind: e.Kind, Key: e.Key, Status: e.Status, Nodes: e.Nodes,
			Reasons: e.Reasons, Findings: e.Findings, Rails: e.Rails,
		}
		if len(one.Findings) == 0 {
			one.Findings = nil
		}
		if len(one.Rails) == 0 {
			one.Rails = nil
		}
		v.Elements = append(v.Elements, one)
	}
	return v
}

// check holds a snapshot against what must be true of any.
func check(tb testing.TB, v view, tree []v1alpha1.Group) {
	tb.Helper()
	want, err := json.Marshal(tree)
	if err != nil {
		tb.Fatal(err)
	}
	if len(tree) == 0 {
		want = []byte("[]")
	}
	if string(want)+"\n" != v.Body {
		tb.Fatalf("joined pieces are not the tree's JSON:\n%s\n%s", v.Body, want)
	}
	seen := map[string]bool{}
	for _, e := range v.Elements {
		id := e.Kind + "/" + e.Name
		if seen[id] {
			tb.Fatalf("%s is there twice:\n%s", id, v.Body)
		}
		seen[id] = true
	}
}

// world makes random events over a fabric.
type world struct {
	fabric *fabrics.Fabric
	rng    *rand.Rand
	now    time.Time
	nodes  map[string]fabric.Node
}

func (w *world) pick() *fabrics.Node { return &w.fabric.Nodes[w.rng.IntN(len(w.fabric.Nodes))] }

// step does one random thing to the world and puts it into the builder.
func (w *world) step(m *fabric.Builder) {
	n := w.pick()
	known, there := w.nodes[n.Name]
	switch w.rng.IntN(12) {
	case 0: // It goes.
		delete(w.nodes, n.Name)
		m.Remove(n.Name)
		return
	case 1: // Time passes.
		w.now = w.now.Add(time.Duration(w.rng.IntN(90)) * time.Second)
		return
	case 2: // A heartbeat, sometimes of a wrong clock.
		if there {
			known.Heartbeat = w.now.Add(time.Duration(w.rng.IntN(900)-600) * time.Second)
			w.nodes[n.Name] = known
			m.Heartbeat(n.Name, known.Heartbeat)
		}
		return
	case 3: // The report is lost.
		known.Report = nil
	default:
		known.Report = read(new(w.report(n)))
	}
	known.Name, known.Ready, known.Since = n.Name, w.rng.IntN(8) > 0, start
	if known.Heartbeat.IsZero() {
		known.Heartbeat = w.now
	}
	if w.rng.IntN(3) == 0 {
		known.Names = w.names(m)
	}
	w.nodes[n.Name] = known
	m.Put(known)
}

// names are labels that the node or another one may have had.
func (w *world) names(m *fabric.Builder) []string {
	var out []string
	name := w.pick().Name
	for holders, e := range m.Snapshot(w.now).All() {
		if e.Name == name {
			for _, h := range holders {
				out = append(out, h.Name)
			}
		}
	}
	return out
}

// report is the node's, with some of it broken.
func (w *world) report(n *fabrics.Node) v1alpha1.NodeTopologySpec {
	spec := *n.Spec.DeepCopy()
	other := w.pick()
	for i := range spec.Rails {
		switch r := &spec.Rails[i]; w.rng.IntN(24) {
		case 0:
			r.LinkState = v1alpha1.LinkDown
		case 1:
			r.LinkState, r.Switch = v1alpha1.LinkDown, nil
		case 2:
			r.Switch = nil
		case 3:
			r.Switch = other.Spec.Rails[w.rng.IntN(len(other.Spec.Rails))].Switch.DeepCopy()
		case 4:
			r.GUID = other.Spec.Rails[0].GUID
		case 5:
			r.SwitchPort = fmt.Sprint(w.rng.IntN(40))
		}
	}
	switch w.rng.IntN(16) {
	case 0:
		spec.Rails = slices.Delete(spec.Rails, 0, 1)
	case 1:
		spec.NVLinkDomain = other.Spec.NVLinkDomain
	case 2:
		spec.Path = slices.Clone(spec.Path)
		slices.Reverse(spec.Path)
	case 3:
		spec.Path = slices.Clone(other.Spec.Path)
	case 4:
		spec.Path = nil
	case 5:
		spec.Uplinks = other.Spec.Uplinks
	case 7: // The driver is not up.
		spec.Accelerators = nil
	case 6: // It has moved.
		spec.Rails = other.Spec.DeepCopy().Rails
	}
	return spec
}

// Whatever came before, the tree is that of a new builder that is given only how
// things are now, in any order.
func TestIncrementalIsFromScratch(t *testing.T) {
	t.Parallel()
	custom := []fabric.Level{
		{Kind: "hall", By: fabric.ByPath},
		{Kind: "spine", By: fabric.BySpine},
		{Kind: "su", By: fabric.ByLeaf},
		{Kind: "pair", By: fabric.ByBlock, Nodes: 2},
		{Kind: "rack", By: fabric.ByNVLink},
	}
	for _, tt := range []struct {
		name   string
		levels []fabric.Level
		plan   fabrics.Plan
	}{
		{"auto", fabric.Preset(fabric.ModeAuto, 0), fabrics.Plan{Sizes: fabrics.Irregular(), Rails: 4, Pod: 4, Spines: 2}},
		{"auto with paths", fabric.Preset(fabric.ModeAuto, 0), fabrics.Plan{Sizes: fabrics.Even(40, 8), Rails: 2, Dragonfly: 2, Switchbox: 4}},
		{"auto with racks", fabric.Preset(fabric.ModeAuto, 0), fabrics.Plan{Sizes: fabrics.Even(48, 12), Rails: 4, Domain: 6, Pod: 2}},
		{"dragonfly", fabric.Preset(fabric.ModeDragonfly, 0), fabrics.Plan{Sizes: fabrics.Even(40, 8), Rails: 4}},
		{"switchbox", fabric.Preset(fabric.ModeSwitchbox, 0), fabrics.Plan{Sizes: fabrics.Even(40, 8), Rails: 4, Dragonfly: 2, Switchbox: 4}},
		{"one leaf for all rails", fabric.Preset(fabric.ModeLeaf, 0), fabrics.Plan{Sizes: fabrics.Even(24, 4), Rails: 4, Rack: true}},
		{"one rail", fabric.Preset(fabric.ModeLeaf, 0), fabrics.Plan{Sizes: fabrics.Even(24, 4), Rails: 1}},
		{"custom", custom, fabrics.Plan{Sizes: fabrics.Irregular(), Rails: 4, Planes: 2, Pod: 4, Dragonfly: 4, Switchbox: 3, Domain: 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for seed := range 4 {
				w := &world{
					fabric: fabrics.New(tt.plan), rng: rand.New(rand.NewPCG(uint64(seed), 2)),
					now: start, nodes: map[string]fabric.Node{},
				}
				m := newMap(tt.levels...)
				for round := range 40 {
					for range 1 + w.rng.IntN(6) {
						w.step(m)
					}
					got := m.Snapshot(w.now)
					fresh := newMap(tt.levels...)
					names := make([]string, 0, len(w.nodes))
					for name := range w.nodes {
						names = append(names, name)
					}
					w.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
					for _, name := range names {
						fresh.Put(w.nodes[name])
					}
					have, want := viewOf(t, got), viewOf(t, fresh.Snapshot(w.now))
					same(t, got, fresh.Snapshot(w.now))
					if diff := cmp.Diff(want, have); diff != "" {
						t.Fatalf("seed %d, round %d (-from scratch +incremental):\n%s", seed, round, diff)
					}
					check(t, have, treeOf(got.Child))
				}
			}
		})
	}
}
