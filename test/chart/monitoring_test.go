package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/test/docs"
)

const everything = "gpuDevice.enabled=true,topoDiscovery.enabled=true,gpuScheduler.enabled=true"

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
	objects := render(t, "--set", everything, "--set", "monitoring.enabled=true")
	page, err := os.ReadFile(root + "/" + docs.Observability)
	if err != nil {
		t.Fatal(err)
	}
	var headings, names []string
	for _, m := range regexp.MustCompile(`(?m)^### (Heddle\w+)$`).FindAllSubmatch(page, -1) {
		headings = append(headings, string(m[1]))
	}
	for _, a := range alerts(t, objects) {
		names = append(names, a.Alert)
		_, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "/"+docs.Observability+"#")
		if anchor != strings.ToLower(a.Alert) {
			t.Errorf("%s has runbook %q", a.Alert, a.Annotations["runbook_url"])
		}
	}
	slices.Sort(headings)
	slices.Sort(names)
	if diff := cmp.Diff(headings, names); diff != "" {
		t.Errorf("(-%s +alerts):\n%s", docs.Observability, diff)
	}
}

// metricsOf returns the metrics that each PromQL expression reads. It fails where
// Prometheus' own parser does not take one.
func metricsOf(t *testing.T, expressions []string) (metrics [][]string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "promql")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", root+"/test/chart/promql", "-o", program, ".")
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
	all := alerts(t, render(t, "--set", everything, "--set", "monitoring.enabled=true"))
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
			// kube-scheduler has the metric of its election.
			if m != "up" && m != "leader_election_master_status" && !known(m) {
				t.Errorf("%s: there is no metric %s", a.Alert, m)
			}
		}
	}
}

// Every alert is on the page of metrics, with the labels of its summary in capitals.
func TestDocumentedAlerts(t *testing.T) {
	rows := [][]string{{"alert", "severity", "fires when", "for", "summary"}}
	label := regexp.MustCompile(`\{\{ \$(?:labels\.)?(\w+) \}\}`)
	for _, a := range alerts(t, render(t, "--set", everything, "--set", "monitoring.enabled=true")) {
		summary := label.ReplaceAllStringFunc(a.Annotations["summary"], func(s string) string {
			return strings.ToUpper(label.FindStringSubmatch(s)[1])
		})
		rows = append(rows, []string{
			"[" + a.Alert + "](#" + strings.ToLower(a.Alert) + ")", a.Labels["severity"], "`" + a.Expr + "`", a.For, summary,
		})
	}
	slices.SortFunc(rows[1:], func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	docs.Section(t, root, docs.Observability, "alerts", docs.Table(rows...), *update)
}
