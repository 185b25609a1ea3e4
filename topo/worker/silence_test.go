package worker

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// TestSilentSourceIsKeptAndMarked follows a cluster manager from its last good
// answer through hours of silence and a restart of the worker.
func TestSilentSourceIsKeptAndMarked(t *testing.T) {
	ports := []Port{{Rail: v1alpha1.Rail{
		ID: "a", Port: 1, HCA: "mlx5_0", Role: "fabric", LinkState: v1alpha1.LinkActive, LinkLayer: machine.InfiniBand,
	}}}
	q := &Query{Ports: ports}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	topology := config.Default().Topology
	memory := v1alpha1.NodeTopologySpec{}
	pass := func(source v1alpha1.Source, r Report) v1alpha1.NodeTopologySpec {
		now = now.Add(time.Minute)
		spec := merge(input{
			machine: &machine.Machine{}, topology: &topology, ports: ports, before: &memory, now: now,
			answers: []answer{{source, r}},
		})
		memory = remember(&memory, &spec)
		return spec
	}
	place := Place{Path: []string{"rack-1"}, Rails: []v1alpha1.Rail{{Switch: &v1alpha1.Switch{ID: "leaf-a"}}}}
	entered := func(confidence int32) (r Report) {
		r.Enter(q, v1alpha1.SourceClusterManager, &place, confidence)
		return r
	}
	old := entered(Remembered)
	old.Silent(now, "no answer")
	away, pending := Report{}, Report{}
	away.Nothing(q, Unavailable)
	away.Silent(time.Time{}, "no answer")
	pending.Nothing(q, Pending)
	since := func(at time.Time) []v1alpha1.StaleSource {
		return []v1alpha1.StaleSource{{
			Source: v1alpha1.SourceClusterManager, Since: metav1.NewTime(at), Reason: "no answer",
		}}
	}
	for _, step := range []struct {
		name  string
		r     Report
		sure  int32
		stale []v1alpha1.StaleSource
	}{
		{"fresh", entered(80), 80, nil},
		{"silent for an hour", old, Remembered, since(now)},
		{"the worker restarts", pending, Remembered, nil},
		{"and gets no answer", away, Remembered, since(now.Add(4 * time.Minute))},
		{"and still none", away, Remembered, since(now.Add(4 * time.Minute))},
		{"and one again", entered(80), 80, nil},
	} {
		spec := pass(v1alpha1.SourceClusterManager, step.r)
		if r := spec.Rails[0]; r.Switch == nil || r.Switch.ID != "leaf-a" || r.Confidence != step.sure {
			t.Errorf("%s: the cable ends at %+v with confidence %d", step.name, r.Switch, r.Confidence)
		}
		if diff := cmp.Diff(place.Path, spec.Path); diff != "" {
			t.Errorf("%s: groups (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.stale, spec.Stale); diff != "" {
			t.Errorf("%s: stale (-want +got):\n%s", step.name, diff)
		}
	}
	// What is used of no source is not stale.
	memory = v1alpha1.NodeTopologySpec{}
	if spec := pass(v1alpha1.SourceClusterManager, away); len(spec.Stale) != 0 {
		t.Errorf("a source that never answered is stale: %+v", spec.Stale)
	}
}

// TestSilenceOfLLDPIsExplained: a switch that sends no frames is no error that a
// source could report, and still why the node has no group.
func TestSilenceOfLLDPIsExplained(t *testing.T) {
	rail := v1alpha1.Rail{
		ID: "a", Port: 1, HCA: "mlx5_0", Role: "fabric", LinkState: v1alpha1.LinkActive, LinkLayer: machine.Ethernet,
	}
	topology := config.Default().Topology
	skipped := func(change func(*v1alpha1.Rail), r Report) []v1alpha1.Skipped {
		one := rail
		change(&one)
		spec := merge(input{
			machine: &machine.Machine{}, topology: &topology, ports: []Port{{Rail: one}}, before: &v1alpha1.NodeTopologySpec{},
			answers: []answer{{v1alpha1.SourceLLDP, r}},
		})
		return spec.Skipped
	}
	same := func(*v1alpha1.Rail) {}
	pending := Report{Listening: true}
	pending.Without(keyOf(&rail), Pending)
	want := []v1alpha1.Skipped{{Name: "mlx5_0 port 1", Reason: noFrames}}
	if diff := cmp.Diff(want, skipped(same, Report{Listening: true})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, got := range map[string][]v1alpha1.Skipped{
		"too early":   skipped(same, pending),
		"not asked":   skipped(same, Report{}),
		"a storage":   skipped(func(r *v1alpha1.Rail) { r.Role = "storage" }, Report{Listening: true}),
		"link down":   skipped(func(r *v1alpha1.Rail) { r.LinkState = v1alpha1.LinkDown }, Report{Listening: true}),
		"InfiniBand":  skipped(func(r *v1alpha1.Rail) { r.LinkLayer = machine.InfiniBand }, Report{Listening: true}),
		"a neighbor ": skipped(same, Report{Listening: true, Links: []Link{{PortKey: keyOf(&rail), Switch: v1alpha1.Switch{ID: "x"}}}}),
	} {
		if len(got) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if len(noFrames) > MaxReason {
		t.Errorf("the reason has %d bytes", len(noFrames))
	}
}

// TestLabelsGroupWhatNobodySees: a node whose switches are known is not moved to
// a zone.
func TestLabelsGroupWhatNobodySees(t *testing.T) {
	topology := config.Default().Topology
	port := Port{Rail: v1alpha1.Rail{ID: "a", Port: 1, HCA: "mlx5_0", Role: "fabric", LinkState: v1alpha1.LinkActive}}
	labels := answer{v1alpha1.SourceNodeLabels, Report{Path: []string{"rack-7"}}}
	link := Report{Links: []Link{{PortKey: port.Key(), Switch: v1alpha1.Switch{ID: "leaf-a"}, Confidence: 100}}}
	for _, tt := range []struct {
		name    string
		answers []answer
		want    []string
	}{
		{"no switch is known", []answer{labels}, []string{"rack-7"}},
		{"one is", []answer{{v1alpha1.SourceIB, link}, labels}, nil},
		{"a file has groups", []answer{{v1alpha1.SourceStatic, Report{Path: []string{"rack-1"}}}, labels}, []string{"rack-1"}},
	} {
		spec := merge(input{
			machine: &machine.Machine{}, topology: &topology, ports: []Port{port}, before: &v1alpha1.NodeTopologySpec{},
			answers: tt.answers,
		})
		if diff := cmp.Diff(tt.want, spec.Path); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// asked is a source that keeps the Node's labels of the query.
type asked struct{ labels map[string]string }

func (*asked) Kind() v1alpha1.Source { return v1alpha1.SourceNodeLabels }

func (a *asked) Discover(_ context.Context, q Query) Report {
	a.labels = q.Labels
	return Report{}
}

// TestLabelsOfTheNodeAreRead: they are asked for where a source needs them.
func TestLabelsOfTheNodeAreRead(t *testing.T) {
	want := map[string]string{"example.com/rack": "7"}
	for text, needed := range map[string]bool{"topology: {pathLabels: [example.com/rack]}\n": true, "mode: native\n": false} {
		dir := t.TempDir()
		for file, text := range map[string]string{"version": "v1", "cluster-config": text} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		log := slog.New(slog.DiscardHandler)
		configs, err := config.NewWatcher(dir, config.Uncompiled{}, log)
		if err != nil {
			t.Fatal(err)
		}
		b := newBed(t)
		b.Server.labels = want
		source := &asked{}
		w := New(Options{
			NodeName: "n1", Machines: b, Configs: configs, Sources: []Source{source}, Publisher: b.Publisher(t, "n1"),
			Interval: time.Minute, Metrics: NewMetrics(prometheus.NewRegistry()), Log: log,
		})
		if err := w.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := source.labels["example.com/rack"]; needed != (got == "7") {
			t.Errorf("%s: the source has %v", text, source.labels)
		}
	}
}

// A file or a cluster manager may name the board of a director, which is one switch.
func TestBoardsOfADirector(t *testing.T) {
	q := &Query{Ports: []Port{{Rail: v1alpha1.Rail{ID: "a", Port: 1, Role: "fabric"}}}}
	for _, tt := range []struct{ name, port, id, want, at string }{
		{"MF0;director:CS8500/L07/U1", "12", "MF0;director:CS8500", "MF0;director:CS8500", "L07/U1/12"},
		{"MF0;director:CS8500/L07/U1", "", "MF0;director:CS8500", "MF0;director:CS8500", "L07/U1"},
		{"MF0;leaf-07:MQM9700/U1", "12", "b1", "MF0;leaf-07:MQM9700/U1", "12"},
		{"", "12", "b1", "", "12"},
	} {
		var r Report
		r.Enter(q, v1alpha1.SourceStatic, &Place{Rails: []v1alpha1.Rail{
			{Switch: &v1alpha1.Switch{ID: "b1", Name: tt.name}, SwitchPort: tt.port},
		}}, 80)
		want := Link{PortKey{ID: "a", Port: 1}, v1alpha1.Switch{ID: tt.id, Name: tt.want}, tt.at, 80, nil}
		if diff := cmp.Diff([]Link{want}, r.Links); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
