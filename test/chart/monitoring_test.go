package chart

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
)

const everything = "gpuDevice.deploy=true,topoDiscovery.deploy=true,gpuScheduler.deploy=true"

// alert is one rule of a PrometheusRule.
type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
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

// Expressions name metrics that daemons register, under the name that is before or
// after their subsystem in the source.
func TestAlertsAreOfMetricsThatThereAre(t *testing.T) {
	source := ""
	for _, dir := range []string{"cmd", "deviceplugin", "discovery", "topo", "sharing"} {
		source += goSource(t, root+"/"+dir)
	}
	subsystems := []string{"", "resource_", "topology_", "topo_", "scheduler_"}
	for _, a := range alerts(t, render(t, "--set", everything, "--set", "monitoring.deploy=true")) {
		metrics := regexp.MustCompile(`heddle_(\w+)`).FindAllStringSubmatch(a.Expr, -1)
		for _, m := range metrics {
			known := strings.Contains(source, `"`+m[0]+`"`) || slices.ContainsFunc(subsystems, func(s string) bool {
				name, ok := strings.CutPrefix(m[1], s)
				return ok && strings.Contains(source, `"`+name+`"`)
			})
			if !known {
				t.Errorf("%s: there is no metric %s", a.Alert, m[0])
			}
		}
		if len(metrics) == 0 && !strings.HasPrefix(a.Expr, "up{") || strings.Count(a.Expr, "(") != strings.Count(a.Expr, ")") {
			t.Errorf("%s: %s", a.Alert, a.Expr)
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
		{"one daemon", []string{"--set", "monitoring.deploy=true"}, []string{"PodMonitor/heddle-feature-discovery", "PrometheusRule/heddle"}},
		{"no rules", []string{"--set", "monitoring.deploy=true,monitoring.rules=false"}, []string{"PodMonitor/heddle-feature-discovery"}},
		{"all", []string{"--set", everything, "--set", "monitoring.deploy=true"}, []string{
			"PodMonitor/heddle-device-plugin", "PodMonitor/heddle-feature-discovery", "PodMonitor/heddle-topo-worker",
			"PrometheusRule/heddle", "PrometheusRule/heddle-scheduler", "ServiceMonitor/heddle-scheduler", "ServiceMonitor/heddle-topo-master",
		}},
	} {
		if diff := cmp.Diff(tt.want, monitors(tt.args...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	objects := render(t, "--set", everything, "--set", "monitoring.deploy=true,gpuDevice.metricsPort=19102,monitoring.labels.release=prom")
	text, err := yaml.Marshal(get[map[string]any](t, objects, "PodMonitor/heddle-device-plugin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"replacement: $1:19102", "[$1]:19102", "release: prom", "app.kubernetes.io/name: heddle-device-plugin"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the PodMonitor lacks %q:\n%s", want, text)
		}
	}
	if got := get[*appsv1.DaemonSet](t, objects, "DaemonSet/heddle-device-plugin").Spec.Template.Spec.Containers[0].Ports; len(got) > 0 {
		t.Errorf("the pods declare ports, and the PodMonitor would make a target of each: %v", got)
	}
}
