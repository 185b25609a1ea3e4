package chart

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/docs"
)

// dashboard has the parts of a Grafana file that the tests read.
type dashboard struct {
	UID        string `json:"uid"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	Title   string `json:"title"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

// dashboards returns the chart's, by their ConfigMap.
func dashboards(t *testing.T, objects rendered) map[string]*dashboard {
	t.Helper()
	all := map[string]*dashboard{}
	for id, object := range objects {
		m, is := object.(*corev1.ConfigMap)
		if !is || !strings.HasPrefix(m.Name, "heddle-dashboard-") {
			continue
		}
		for file, text := range m.Data {
			d := &dashboard{}
			if err := json.Unmarshal([]byte(text), d); err != nil || d.UID != "heddle-"+strings.TrimSuffix(file, ".json") {
				t.Fatalf("%s: uid %q, %v", id, d.UID, err)
			}
			all[id] = d
		}
	}
	return all
}

// Grafana's sidecar finds the dashboards by their label, where they are wanted.
func TestDashboards(t *testing.T) {
	if all := dashboards(t, render(t, "--set", "monitoring.enabled=true")); len(all) > 0 {
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

// A panel, and the values of a variable, are of metrics that docs/reference/metrics.md has.
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
	values := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	var expressions, from []string
	for id, d := range dashboards(t, render(t, "--set", "monitoring.dashboards.enabled=true")) {
		replacer := []string{"$__rate_interval", "1m"}
		for _, v := range d.Templating.List {
			replacer = append(replacer, "$"+v.Name, ".*")
			if m := values.FindStringSubmatch(v.Definition); m != nil {
				expressions, from = append(expressions, "group by ("+m[2]+") ("+m[1]+")"), append(from, id)
			}
		}
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				expressions = append(expressions, strings.NewReplacer(replacer...).Replace(q.Expr))
				from = append(from, id+": "+p.Title)
			}
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
