package feature

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// machines, configs, nodes and sink are sources and a sink that a test drives.
type machines struct {
	m       *machine.Machine
	changed chan struct{}
}

func (s *machines) Machine() *machine.Machine { return s.m }
func (s *machines) Changed() <-chan struct{}  { return s.changed }

type configs struct {
	c       *config.Config
	err     error
	changed chan struct{}
}

func (s *configs) Current() *config.Config  { return s.c }
func (s *configs) Err() error               { return s.err }
func (s *configs) Changed() <-chan struct{} { return s.changed }

type nodes struct {
	n       *corev1.Node
	changed chan struct{}
}

func (s *nodes) Node() *corev1.Node       { return s.n }
func (s *nodes) Keep(n *corev1.Node)      { s.n = n }
func (s *nodes) Changed() <-chan struct{} { return s.changed }

type sink struct {
	mu        sync.Mutex // guards what follows
	puts      []nodesync.Desired
	warnings  []string
	err       error
	conflicts []nodesync.Conflict
}

func (s *sink) Put(_ context.Context, n *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts = append(s.puts, want)
	return nodesync.Result{Node: n, Conflicts: s.conflicts}, s.err
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.puts)
}

func (s *sink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *sink) Warn(_ context.Context, reason, message string) error {
	s.warnings = append(s.warnings, reason+": "+message)
	return nil
}

type bed struct {
	*Daemon
	machines *machines
	configs  *configs
	nodes    *nodes
	sink     *sink
}

func newBed(t *testing.T, text map[string][]byte) *bed {
	t.Helper()
	c, err := config.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{
		machines: &machines{m: &machine.Machine{Version: machine.Version, Node: "n1"}, changed: make(chan struct{}, 1)},
		configs:  &configs{c: c, changed: make(chan struct{}, 1)},
		nodes:    &nodes{n: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, changed: make(chan struct{}, 1)},
		sink:     &sink{},
	}
	b.Daemon = New(Options{
		NodeName: "n1", Machines: b.machines, Configs: b.configs, Nodes: b.nodes, Sink: b.sink, Interval: time.Minute,
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
	return b
}

func TestRoundUsesTheNodesLabelsToChooseOverrides(t *testing.T) {
	b := newBed(t, map[string][]byte{
		"version":      []byte("v1"),
		"nodes-config": []byte("- {nodeSelector: {pool: x}, usage: training}\n"),
	})
	if err := b.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.nodes.n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"pool": "x"}}}
	if err := b.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := nodesync.Desired{
		Labels: map[string]string{"heddle.dev/node.usage": "training"},
		Taints: []corev1.Taint{{Key: "heddle.dev/node.usage", Value: "training", Effect: corev1.TaintEffectNoSchedule}},
	}
	if _, ok := b.sink.puts[0].Labels["heddle.dev/node.usage"]; ok {
		t.Error("an override for another pool was taken")
	}
	if diff := cmp.Diff(want, b.sink.puts[1]); diff != "" {
		t.Errorf("second round (-want +got):\n%s", diff)
	}
}

func TestRoundWaitsForItsSources(t *testing.T) {
	b := newBed(t, nil)
	m := b.machines.m
	b.machines.m = nil
	if err := b.Round(t.Context()); !errors.Is(err, errNotYet) {
		t.Errorf("without a machine: %v", err)
	}
	b.machines.m, b.nodes.n = m, nil
	if err := b.Round(t.Context()); !errors.Is(err, errNotYet) {
		t.Errorf("without a Node: %v", err)
	}
	if len(b.sink.puts) != 0 || b.Metrics.Ready() == "" {
		t.Errorf("%d writes, ready %v", len(b.sink.puts), b.Metrics.Ready() == "")
	}
}

func TestWarningsAreSaidOnce(t *testing.T) {
	b := newBed(t, nil)
	round := func() {
		t.Helper()
		if err := b.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.configs.err = errors.New("cluster-config:1: mode: bad")
	b.sink.conflicts = []nodesync.Conflict{{Kind: "label", Key: "a", Want: "1", Have: "2", Manager: "gfd"}}
	round()
	round()
	b.configs.err = nil
	round()
	b.configs.err = errors.New("cluster-config:2: mode: bad")
	round()
	want := []string{
		"InvalidConfiguration: keeping the last good configuration: cluster-config:1: mode: bad",
		`LabelConflict: label a: gfd holds it with value "2", want "1"`,
		"InvalidConfiguration: keeping the last good configuration: cluster-config:2: mode: bad",
	}
	if diff := cmp.Diff(want, b.sink.warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestRunRetriesEverMoreSlowlyAndWakesForChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		b.sink.fail(errors.New("the API server is away"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()

		// At 0, 1, 3 and 7 seconds, each pause up to a fifth longer: 8.4 at the
		// latest, and the fifth one at 15 at the earliest.
		<-time.After(9 * time.Second)
		synctest.Wait()
		if n := b.sink.count(); n != 4 {
			t.Errorf("%d attempts in 9 s, want 4", n)
		}
		if b.Metrics.Ready() == "" {
			t.Error("ready while no write succeeded")
		}
		b.sink.fail(nil)
		b.machines.changed <- struct{}{}
		synctest.Wait()
		if n := b.sink.count(); n != 5 || b.Metrics.Ready() != "" {
			t.Errorf("%d attempts after a change, ready %v", n, b.Metrics.Ready() == "")
		}
		<-time.After(30 * time.Second)
		synctest.Wait()
		quiet := b.sink.count()
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if n := b.sink.count() - quiet; n != 2 {
			t.Errorf("%d rounds in two quiet minutes, want 2", n)
		}
		if b.Alive() != "" {
			t.Error("not alive")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		<-time.After(4 * time.Minute)
		if b.Alive() == "" {
			t.Error("alive four minutes after the end")
		}
	})
}

func TestFileSink(t *testing.T) {
	dir := t.TempDir()
	s := FileSink{Path: filepath.Join(dir, "heddle")}
	want := nodesync.Desired{Labels: map[string]string{"b": "2", "a": "1"}}
	for i, writes := range []int{1, 0} {
		if r, err := s.Put(t.Context(), nil, want); err != nil || r.Writes != writes {
			t.Errorf("put %d: %d writes, %v", i, r.Writes, err)
		}
	}
	got, err := os.ReadFile(s.Path)
	if err != nil || string(got) != "a=1\nb=2\n" {
		t.Errorf("file %q, %v", got, err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".*")); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	big := nodesync.Desired{Labels: map[string]string{"a": strings.Repeat("x", maxFeatureFile)}}
	if _, err := s.Put(t.Context(), nil, big); err == nil {
		t.Error("a file that node-feature-discovery would not read was written")
	}
	if _, err := (FileSink{Path: filepath.Join(dir, "none", "x")}).Put(t.Context(), nil, want); err == nil {
		t.Error("no error for a missing directory")
	}
}
