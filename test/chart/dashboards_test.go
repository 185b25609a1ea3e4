package chart

import (
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/docs"
	"github.com/heddle-dev/heddle/test/grafana"
)

// dashboards are those of the chart, by their ConfigMap.
func dashboards(t *testing.T, objects rendered) map[string]*grafana.Dashboard {
	t.Helper()
	all := map[string]*grafana.Dashboard{}
	for id, object := range objects {
		m, is := object.(*corev1.ConfigMap)
		if !is || !strings.HasPrefix(m.Name, "heddle-dashboard-") {
			continue
		}
		for _, text := range m.Data {
			d, err := grafana.Decode([]byte(text))
			if err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			all[id] = d
		}
	}
	return all
}

// Grafana's sidecar finds the dashboards by their label, where they are wanted.
func TestDashboards(t *testing.T) {
	if all := dashboards(t, render(t, "--set", "monitoring.deploy=true")); len(all) > 0 {
		t.Errorf("%d dashboards that nothing asked for", len(all))
	}
	objects := render(t, "--set", "monitoring.dashboards.enabled=true,monitoring.dashboards.annotations.grafana_folder=GPUs")
	for _, name := range []string{"fleet", "node", "shares", "gangs", "fabric"} {
		m := get[*corev1.ConfigMap](t, objects, "ConfigMap/heddle-dashboard-"+name)
		if m.Labels["grafana_dashboard"] != "1" || m.Annotations["grafana_folder"] != "GPUs" || m.Data[name+".json"] == "" {
			t.Errorf("%s: labels %v, annotations %v, %d files", m.Name, m.Labels, m.Annotations, len(m.Data))
		}
	}
}

// A panel, and the values of a variable, are of metrics that docs/observability.md has.
// Every metric of a daemon's own table need not be in a panel.
func TestDashboardsAreOfDocumentedMetrics(t *testing.T) {
	page, err := os.ReadFile(root + "/" + docs.Observability)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{
		"up": true, "heddle_build_info": true, "process_resident_memory_bytes": true, "process_cpu_seconds_total": true,
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(heddle_\\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		documented[row[1]] = true
	}
	histogram := regexp.MustCompile(`_(bucket|count|sum)$`)
	var expressions, from []string
	for id, d := range dashboards(t, render(t, "--set", "monitoring.dashboards.enabled=true")) {
		for _, q := range d.Queries() {
			expressions, from = append(expressions, q.Expr), append(from, id+": "+q.Panel)
		}
		for _, v := range d.Variables() {
			expressions, from = append(expressions, v), append(from, id)
		}
	}
	for i, names := range metricsOf(t, expressions) {
		if len(names) == 0 {
			t.Errorf("%s reads no metric: %s", from[i], expressions[i])
		}
		for _, name := range names {
			if !documented[name] && !documented[histogram.ReplaceAllString(name, "")] {
				t.Errorf("%s: there is no metric %s", from[i], name)
			}
		}
	}
	if len(expressions) < 100 {
		t.Errorf("%d expressions", len(expressions))
	}
}
