// Package schedulerperf runs kube-scheduler's own benchmark, test/integration/scheduler_perf of the
// Kubernetes version that heddle-scheduler is built on, with the plugin Heddle in the registry. The cases,
// their templates, the API server and etcd are upstream's; the scheduler's configuration is the contender's.
// `go run ./test/bench schedulerperf` runs the contenders in turns, each workload in a process of its own.
package schedulerperf

import (
	"bytes"
	"flag"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/kubernetes/pkg/features"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"
	"sigs.k8s.io/yaml"

	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/httpapi"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
	"github.com/heddle-dev/heddle/topo/scheduler/plugin"
)

const (
	// documented is heddle-scheduler's configuration where it takes native PodGroups.
	documented = "../../../cmd/heddle-scheduler/testdata/scheduler-generic-workload.yaml"
	// racks and rackSize match the node template of upstream's topology cases.
	racks, rackSize = 50, 100
)

var (
	topic     = flag.String("topic", "podgroup/gangscheduling", "folder of upstream's scheduler_perf with the cases")
	contender = flag.String("contender", "heddle", "heddle; native: kube-scheduler with its defaults; "+
		"tuned: native without default spreading and without nominated node names, its strongest setting for gangs")
)

func TestMain(m *testing.M) {
	if err := perf.InitTests(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// BenchmarkPerfScheduling runs the cases of -topic that -bench and -perf-scheduling-label-filter choose.
func BenchmarkPerfScheduling(b *testing.B) {
	var config string
	var registry frameworkruntime.Registry
	switch *contender {
	case "native":
	case "tuned":
		withoutNomination(b)
		config = tuned
	case "heddle":
		withoutNomination(b)
		config, registry = heddle(b)
	default:
		b.Fatalf("unknown contender %q", *contender)
	}
	results, err := filepath.Abs(flag.Lookup("data-items-dir").Value.String())
	if err != nil {
		b.Fatal(err)
	}
	if err := flag.Set("data-items-dir", results); err != nil {
		b.Fatal(err)
	}
	upstreamCases(b, config, *contender == "heddle")
	perf.RunBenchmarkPerfScheduling(b, "performance-config.yaml", *contender, registry, perf.WithPodsSchedulingTimeout(20*time.Minute))
}

// tuned is kube-scheduler's configuration without default spreading, which forbids batching.
const tuned = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List}}]
`

// withoutNomination changes the default of the gate that cmd/heddle-scheduler changes.
func withoutNomination(b *testing.B) {
	b.Helper()
	if err := utilfeature.DefaultMutableFeatureGate.OverrideDefault(features.NominatedNodeNameForExpectation, false); err != nil {
		b.Fatal(err)
	}
}

// heddle returns the documented configuration, for upstream's name of the scheduler and with a topo-master
// that serves upstream's racks, and the registry with the plugin.
func heddle(b *testing.B) (config string, registry frameworkruntime.Registry) {
	b.Helper()
	master := httptest.NewServer(httpapi.New(httpapi.Options{
		Latest: latest(), Registry: prometheus.NewRegistry(), Alive: func() string { return "" }, Log: slog.New(slog.DiscardHandler),
	}).Handler())
	b.Cleanup(func() { // A request of the plugin waits for the next tree.
		master.CloseClientConnections()
		master.Close()
	})
	text, err := os.ReadFile(documented)
	if err != nil {
		b.Fatal(err)
	}
	var c map[string]any
	if err := yaml.Unmarshal(text, &c); err != nil {
		b.Fatal(err)
	}
	profile := c["profiles"].([]any)[0].(map[string]any)
	profile["schedulerName"] = "default-scheduler"
	for _, p := range profile["pluginConfig"].([]any) {
		if p := p.(map[string]any); p["name"] == plugin.Name {
			p["args"].(map[string]any)["topoMaster"] = master.URL + "/node_group"
		}
	}
	if text, err = yaml.Marshal(c); err != nil {
		b.Fatal(err)
	}
	metrics, queue := prometheus.NewRegistry(), &plugin.Queue{}
	return string(text), frameworkruntime.Registry{
		plugin.Name:      plugin.Factory(slog.New(slog.DiscardHandler), metrics, metrics, queue),
		plugin.QueueName: queue.Factory,
	}
}

// latest is topo-master's snapshot of the racks, from the reports of their nodes.
func latest() *snapshot.Latest {
	levels := fabric.Preset(fabric.ModeAuto, 0)
	builder := fabric.New(levels)
	for i, n := range fabrics.New(fabrics.Plan{Sizes: fabrics.Even(racks*rackSize, rackSize), Rails: 1, Rack: true}).Nodes {
		builder.Put(fabric.Node{Name: fmt.Sprintf("node-%d", i), Ready: true, Report: fabric.Read(&n.Spec)})
	}
	latest := snapshot.NewLatest()
	latest.Set(&snapshot.Snapshot{Generation: 1, Levels: levels, Tree: builder.Snapshot(time.Unix(1, 0))})
	return latest
}

// upstreamCases copies upstream's folder and works in the one of -topic. The only edits name the scheduler's
// configuration in each case, and turn on the feature gate that heddle's chart turns on beside GenericWorkload.
func upstreamCases(b *testing.B, config string, topologyAware bool) {
	b.Helper()
	module, err := exec.CommandContext(b.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		b.Fatalf("go list: %v", err)
	}
	dir := b.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(string(bytes.TrimSpace(module)), "test/integration/scheduler_perf"))); err != nil {
		b.Fatal(err)
	}
	b.Chdir(filepath.Join(dir, *topic))
	if config == "" {
		return
	}
	file := filepath.Join(dir, "scheduler-config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile("performance-config.yaml")
	if err != nil {
		b.Fatal(err)
	}
	const gate = "TopologyAwareWorkloadScheduling: true"
	topologyAware = topologyAware && !bytes.Contains(text, []byte(gate))
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		out.WriteString(line)
		if before, ok := strings.CutSuffix(line, "GenericWorkload: true\n"); ok && topologyAware {
			out.WriteString(before + gate + "\n")
		}
		if strings.HasPrefix(line, "- name: ") {
			fmt.Fprintf(&out, "  schedulerConfigPath: %s\n", file)
		}
	}
	if err := os.Chmod("performance-config.yaml", 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile("performance-config.yaml", []byte(out.String()), 0o600); err != nil {
		b.Fatal(err)
	}
}
