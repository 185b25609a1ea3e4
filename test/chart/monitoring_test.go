package chart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/heddle-dev/heddle/test/docs"
)

const everything = "gpuDevice.deploy=true,topoDiscovery.deploy=true,gpuScheduler.deploy=true"

// alert is one rule of a PrometheusRule.
type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alerts(t *testing.T, objects rendered) (all []alert) {
	t.Helper()
	for id, object := range objects {
		if !strings.HasPrefix(id, "PrometheusRule/") {
			continue
		}
		var rule struct {
			Spec struct {
				Groups []struct {
					Rules []alert `yaml:"rules"`
				} `yaml:"groups"`
			} `yaml:"spec"`
		}
		text, err := yaml.Marshal(object)
		if err == nil {
			err = yaml.Unmarshal(text, &rule)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range rule.Spec.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// Every alert has its steps under its name, and every heading an alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	objects := render(t, "--set", everything, "--set", "monitoring.deploy=true")
	page, err := os.ReadFile(root + "/docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	var headings, names []string
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllSubmatch(page, -1) {
		headings = append(headings, string(m[1]))
	}
	for _, a := range alerts(t, objects) {
		names = append(names, a.Alert)
		if _, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "/docs/alerts.md#"); anchor != strings.ToLower(a.Alert) {
			t.Errorf("%s has runbook %q", a.Alert, a.Annotations["runbook_url"])
		}
	}
	slices.Sort(headings)
	slices.Sort(names)
	if diff := cmp.Diff(headings, names); diff != "" {
		t.Errorf("(-docs/alerts.md +alerts):\n%s", diff)
	}
	mine := render(t, "--set", everything, "--set", "monitoring.deploy=true,monitoring.runbooks=https://wiki.example.com/gpu")
	for _, a := range alerts(t, mine) {
		if want := "https://wiki.example.com/gpu#" + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("runbook %q, want %q", a.Annotations["runbook_url"], want)
		}
	}
}

// metricsOf returns the metrics that each PromQL expression reads. It fails where
// Prometheus' own parser does not take one.
func metricsOf(t *testing.T, expressions []string) (metrics [][]string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "promql")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", root+"/tools/promql", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("go cannot build Prometheus' parser here: %v: %s", err, out)
	}
	parse := exec.CommandContext(t.Context(), program)
	parse.Stdin = strings.NewReader(strings.Join(expressions, "\n"))
	var stderr strings.Builder
	parse.Stderr = &stderr
	out, err := parse.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	for line := range strings.Lines(string(out)) {
		metrics = append(metrics, strings.Fields(line))
	}
	return metrics
}

// Expressions are PromQL, and read metrics that daemons register, under the name
// that is before or after their subsystem in the source.
func TestAlertsAreOfMetricsThatThereAre(t *testing.T) {
	source := ""
	for _, dir := range []string{"cmd", "deviceplugin", "discovery", "topo", "sharing"} {
		source += goSource(t, root+"/"+dir)
	}
	known := func(metric string) bool {
		rest, ok := strings.CutPrefix(metric, "heddle_")
		return ok && (strings.Contains(source, `"`+metric+`"`) ||
			slices.ContainsFunc([]string{"", "resource_", "topology_", "scheduler_"}, func(subsystem string) bool {
				name, ok := strings.CutPrefix(rest, subsystem)
				return ok && strings.Contains(source, `"`+name+`"`)
			}))
	}
	all := alerts(t, render(t, "--set", everything, "--set", "monitoring.deploy=true"))
	var expressions []string
	for _, a := range all {
		expressions = append(expressions, strings.Join(strings.Fields(a.Expr), " "))
	}
	metrics := metricsOf(t, expressions)
	if len(metrics) != len(all) {
		t.Fatalf("metrics of %d expressions, want %d", len(metrics), len(all))
	}
	for i, a := range all {
		if len(metrics[i]) == 0 {
			t.Errorf("%s reads no metric: %s", a.Alert, a.Expr)
		}
		for _, m := range metrics[i] {
			if m != "up" && !known(m) {
				t.Errorf("%s: there is no metric %s", a.Alert, m)
			}
		}
	}
}

// A monitor for every daemon that runs, at the port that it listens on.
func TestMonitors(t *testing.T) {
	monitors := func(args ...string) (ids []string) {
		for id := range render(t, args...) {
			if kind, _, _ := strings.Cut(id, "/"); strings.HasSuffix(kind, "Monitor") || kind == "PrometheusRule" {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		return ids
	}
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"off", []string{"--set", everything}, nil},
		{"one daemon", []string{"--set", "monitoring.deploy=true,gpuDevice.deploy=false"}, []string{"PodMonitor/heddle-feature-discovery", "PrometheusRule/heddle"}},
		{"no rules", []string{"--set", "monitoring.deploy=true,monitoring.rules=false,gpuDevice.deploy=false"}, []string{"PodMonitor/heddle-feature-discovery"}},
		{"all", []string{"--set", everything, "--set", "monitoring.deploy=true"}, []string{
			"PodMonitor/heddle-device-plugin", "PodMonitor/heddle-feature-discovery", "PodMonitor/heddle-topo-worker",
			"PrometheusRule/heddle", "PrometheusRule/heddle-scheduler", "ServiceMonitor/heddle-scheduler", "ServiceMonitor/heddle-topo-master",
		}},
	} {
		if diff := cmp.Diff(tt.want, monitors(tt.args...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	objects := render(t, "--set", everything, "--set", "monitoring.deploy=true,gpuDevice.metricsPort=19102,monitoring.labels.release=prom",
		"--set", "monitoring.interval=15s")
	for id, object := range objects {
		if text := fmt.Sprint(object); strings.Contains(id, "Monitor/") && !strings.Contains(text, "interval:15s") {
			t.Errorf("%s does not take the interval: %s", id, text)
		}
	}
	text, err := yaml.Marshal(get[map[string]any](t, objects, "PodMonitor/heddle-device-plugin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"replacement: $1:19102", "[$1]:19102", "release: prom", "honorLabels: true", "app.kubernetes.io/name: heddle-device-plugin"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the PodMonitor lacks %q:\n%s", want, text)
		}
	}
	if got := get[*appsv1.DaemonSet](t, objects, "DaemonSet/heddle-device-plugin").Spec.Template.Spec.Containers[0].Ports; len(got) > 0 {
		t.Errorf("the pods declare ports, and the PodMonitor would make a target of each: %v", got)
	}
}

// Every alert is on the page of metrics, with the labels of its summary in capitals.
func TestDocumentedAlerts(t *testing.T) {
	rows := [][]string{{"alert", "severity", "fires when", "for", "which means"}}
	label := regexp.MustCompile(`\{\{ \$(?:labels\.)?(\w+) \}\}`)
	for _, a := range alerts(t, render(t, "--set", everything, "--set", "monitoring.deploy=true")) {
		summary := label.ReplaceAllStringFunc(a.Annotations["summary"], func(s string) string {
			return strings.ToUpper(label.FindStringSubmatch(s)[1])
		})
		rows = append(rows, []string{
			"[" + a.Alert + "](alerts.md#" + strings.ToLower(a.Alert) + ")", a.Labels["severity"], "`" + a.Expr + "`", a.For, summary,
		})
	}
	slices.SortFunc(rows[1:], func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	docs.Section(t, root, docs.Observability, "alerts", docs.Table(rows...), *update)
}
