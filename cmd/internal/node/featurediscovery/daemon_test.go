package featurediscovery

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
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
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/test/docs"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/programtest"
)

// fakeMachines and fakeSink are a source and a sink that a test drives.
type fakeMachines struct {
	m       *machine.Machine
	changed chan struct{}
}

func (s *fakeMachines) Run(context.Context) error             { return nil }
func (s *fakeMachines) Scan(context.Context) *machine.Machine { return s.m }
func (s *fakeMachines) Machine() *machine.Machine             { return s.m }
func (s *fakeMachines) Changed() <-chan struct{}              { return s.changed }

type fakeSink struct {
	mu        sync.Mutex // guards what follows
	puts      []nodesync.Desired
	warnings  []string
	err       error
	conflicts []nodesync.Conflict
}

func (s *fakeSink) Sync(_ context.Context, n *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts = append(s.puts, want)
	return nodesync.Result{Node: n, Conflicts: s.conflicts}, s.err
}

func (s *fakeSink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.puts)
}

func (s *fakeSink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *fakeSink) Warn(_ context.Context, reason, message string) error {
	s.warnings = append(s.warnings, reason+": "+message)
	return nil
}

type bed struct {
	*daemon

	machines *fakeMachines
	// dir has the files of the configuration.
	dir  string
	sink *fakeSink
}

func newBed(t *testing.T, text map[string]string) *bed {
	t.Helper()
	b := &bed{
		dir:      t.TempDir(),
		machines: &fakeMachines{m: &machine.Machine{Version: machine.Version, Node: "n1"}, changed: make(chan struct{}, 1)},
		sink:     &fakeSink{},
	}
	b.configure(t, "version", "v1")
	for name, content := range text {
		b.configure(t, name, content)
	}
	log := slog.New(slog.DiscardHandler)
	configs, err := config.NewWatcher(b.dir, &rule.CEL{}, log)
	if err != nil {
		t.Fatal(err)
	}
	configs.Every = time.Second
	watch := nodesync.NewWatch(nil, "n1")
	b.daemon = &daemon{
		nodeName: "n1", machines: b.machines, configs: configs, node: watch, sink: b.sink, interval: time.Minute,
		metrics: newMetrics(prometheus.NewRegistry()), log: log, warned: map[string]string{},
	}
	b.see(t, nil)
	<-watch.Changed()
	return b
}

// configure replaces a file of the configuration.
func (b *bed) configure(t *testing.T, name, content string) {
	t.Helper()
	if err := hostfile.Write(filepath.Join(b.dir, name), []byte(content), 0o600, hostfile.Quick); err != nil {
		t.Fatal(err)
	}
}

// see has the API server show the Node with these labels.
func (b *bed) see(t *testing.T, labels map[string]string) {
	t.Helper()
	if err := b.node.Update(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: labels}}); err != nil {
		t.Fatal(err)
	}
}

func TestRoundUsesTheNodesLabelsToChooseOverrides(t *testing.T) {
	b := newBed(t, map[string]string{"nodes-config": "- {nodeSelector: {pool: x}, usage: training}\n"})
	if err := b.round(t.Context(), b.machines.m); err != nil {
		t.Fatal(err)
	}
	b.see(t, map[string]string{"pool": "x"})
	if err := b.round(t.Context(), b.machines.m); err != nil {
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
	if err := b.round(t.Context(), b.machines.m); !errors.Is(err, notify.ErrNotYet) {
		t.Errorf("without a machine: %v", err)
	}
	b.machines.m = m
	if err := b.node.Delete(nil); err != nil {
		t.Fatal(err)
	}
	if err := b.round(t.Context(), b.machines.m); !errors.Is(err, notify.ErrNotYet) {
		t.Errorf("without a Node: %v", err)
	}
	if len(b.sink.puts) != 0 || b.metrics.ready() == "" {
		t.Errorf("%d writes, ready %v", len(b.sink.puts), b.metrics.ready() == "")
	}
}

func TestWarningsAreNotRepeated(t *testing.T) {
	b := newBed(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.configs.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	// configure waits until the configuration is as it should be, valid or not.
	configure := func(text, fault string) {
		t.Helper()
		b.configure(t, "cluster-config", text)
		for deadline := time.After(5 * time.Minute); ; {
			if err := b.configs.Err(); err == nil && fault == "" || err != nil && fault != "" && strings.Contains(err.Error(), fault) {
				return
			}
			select {
			case <-b.configs.Changed():
			case <-deadline:
				t.Fatalf("the configuration is %v", b.configs.Err())
			}
		}
	}
	round := func() {
		t.Helper()
		if err := b.round(t.Context(), b.machines.m); err != nil {
			t.Fatal(err)
		}
	}
	configure("mode: bad\n", "cluster-config:1: mode: ")
	b.sink.conflicts = []nodesync.Conflict{{Kind: "label", Key: "a", Want: "1", Have: "2", Manager: "gfd"}}
	round()
	round()
	configure("", "")
	round()
	configure("\nmode: bad\n", "cluster-config:2: mode: ")
	round()
	want := []string{
		"InvalidConfiguration: keeping the last good configuration: cluster-config:1: mode: ",
		`LabelConflict: label a: gfd holds it with value "2", want "1"`,
		"InvalidConfiguration: keeping the last good configuration: cluster-config:2: mode: ",
	}
	if diff := cmp.Diff(want, b.sink.warnings, cmp.Comparer(func(a, b string) bool {
		return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
	})); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestRunBacksOffAndRunsAtChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		b.sink.fail(errors.New("the API server is away"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.run(ctx) }()

		// At 0, 1, 3 and 7 seconds, each pause up to a fifth longer: 8.4 at the
		// latest, and the fifth one at 15 at the earliest.
		<-time.After(9 * time.Second)
		synctest.Wait()
		if n := b.sink.count(); n != 4 {
			t.Errorf("%d attempts in 9 s, want 4", n)
		}
		if b.metrics.ready() == "" {
			t.Error("ready while no write succeeded")
		}
		b.sink.fail(nil)
		b.machines.changed <- struct{}{}
		synctest.Wait()
		if n := b.sink.count(); n != 5 || b.metrics.ready() != "" {
			t.Errorf("%d attempts after a change, ready %v", n, b.metrics.ready() == "")
		}
		<-time.After(30 * time.Second)
		synctest.Wait()
		quiet := b.sink.count()
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if n := b.sink.count() - quiet; n != 2 {
			t.Errorf("%d rounds in two quiet minutes, want 2", n)
		}
		if b.alive() != "" {
			t.Error("not alive")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		<-time.After(4 * time.Minute)
		if b.alive() == "" {
			t.Error("alive four minutes after the end")
		}
	})
}

// The kubelet's probe fails while no round has begun for long: by a time of the wall clock it would
// as soon as that is set forward, and would not while it is set back.
func TestRoundsAreByAClockThatNothingSets(t *testing.T) {
	d := &daemon{metrics: newMetrics(prometheus.NewRegistry()), interval: time.Minute}
	if d.alive() == "" {
		t.Error("alive before the first round")
	}
	if err := d.round(t.Context(), nil); !errors.Is(err, notify.ErrNotYet) || d.alive() != "" {
		t.Errorf("error %v, alive %q", err, d.alive())
	}
	if beat := d.metrics.lastBeat.Load().String(); !strings.Contains(beat, " m=") {
		t.Errorf("%s has no monotonic reading", beat)
	}
}

func TestFileSink(t *testing.T) {
	dir := t.TempDir()
	s := fileSink{path: filepath.Join(dir, "heddle")}
	want := nodesync.Desired{Labels: map[string]string{"b": "2", "a": "1"}}
	for i, writes := range []int{1, 0} {
		if r, err := s.Sync(t.Context(), nil, want); err != nil || r.Writes != writes {
			t.Errorf("put %d: %d writes, %v", i, r.Writes, err)
		}
	}
	got, err := os.ReadFile(s.path)
	if err != nil || string(got) != "a=1\nb=2\n" {
		t.Errorf("file %q, %v", got, err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".*")); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	big := nodesync.Desired{Labels: map[string]string{"a": strings.Repeat("x", maxFeatureFile)}}
	if _, err := s.Sync(t.Context(), nil, big); err == nil {
		t.Error("a file that node-feature-discovery would not read was written")
	}
	if _, err := (fileSink{path: filepath.Join(dir, "none", "x")}).Sync(t.Context(), nil, want); err == nil {
		t.Error("no error for a missing directory")
	}
}

var update = flag.Bool("update", false, "write "+docs.Observability)

func TestDocumentedMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	newMetrics(r)
	docs.Section(t, "../../../..", docs.Observability, "heddle-feature-discovery", docs.Metrics(t, r), *update)
}

const dgx = "../../../../test/machines/dgx-h100.json"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, Name, "dev", New("dev"), args, stdout, stderr)
}

func TestRunOnce(t *testing.T) {
	programtest.Run(t, "heddle-feature-discovery", run, program.ErrUsage, []programtest.Case{
		{Name: "short interval", Args: []string{"--interval=1ms"}, Err: program.ErrUsage, Stderr: "less than 1s"},
		{Name: "cleanup of nothing", Args: []string{"--cleanup", "--dry-run"}, Err: program.ErrUsage, Stderr: "exclude"},
		{
			Name:   "dry run without an API server",
			Args:   []string{"--dry-run", "--machine", dgx, "--node-name", "n1"},
			Stdout: "+ nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\n",
		},
		{Name: "machine file cut in half", Args: []string{"--dry-run", "--machine", programtest.Half(t, machines.Dump(t, "dgx-h100"))}, Stderr: "half.json"},
		{Name: "bad configuration", Args: []string{"--dry-run", "--machine", dgx, "--config", programtest.Config(t, "mode: nativ\n")}, Stderr: "cluster-config:1"},
		{Name: "no API server", Args: []string{"--oneshot", "--machine", dgx}, Stderr: "--kubeconfig"},
	})
}

func TestOutputFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "heddle")
	args := []string{"--oneshot", "--machine", dgx, "--output-file", file, "--log-level", "error"}
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatal(err, stderr.String())
	}
	got, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(got), "\nnvidia.com/gpu.count=8\n") {
		t.Errorf("feature file %q, %v", got, err)
	}
}
