package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

const chart = "../../deploy/helm/heddle/dashboards"

// The chart has what the descriptions here make, and nothing else.
func TestChartIsCurrent(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	made, want := read(t, dir), read(t, chart)
	for name, text := range made {
		if !bytes.Equal(text, want[name]) {
			t.Errorf("%s is stale: go run -C tools/dashboards .", name)
		}
	}
	if len(made) != len(want) {
		t.Errorf("%d files, %d descriptions", len(want), len(made))
	}
}

func read(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(paths), err)
	}
	all := map[string][]byte{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = text
	}
	return all
}

// Grafana's own types take every key of every dashboard, and a person can read them.
func TestGrafanaReadsThem(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	uids, titles := map[string]string{}, map[string]string{}
	for name, text := range read(t, chart) {
		t.Run(name, func(t *testing.T) {
			// Without errors the strict one returns an error that is an empty list, and no queries.
			var d, strict grafana.Dashboard
			if err := strict.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &d); err != nil {
				t.Fatal(err)
			}
			if err := d.Validate(); err != nil {
				t.Error(err)
			}
			if d.Uid == nil || *d.Uid != "heddle-"+strings.TrimSuffix(name, ".json") || uids[*d.Uid] != "" {
				t.Errorf("uid %v", d.Uid)
			}
			if d.Title == nil || titles[*d.Title] != "" || d.SchemaVersion < 39 {
				t.Errorf("title %v, schema %d", d.Title, d.SchemaVersion)
			}
			uids[*d.Uid], titles[*d.Title] = name, name
			if list := d.Templating.List; len(list) == 0 || list[0].Name != "datasource" || list[0].Type != grafana.VariableTypeDatasource {
				t.Errorf("the first variable is no data source: %+v", list)
			}
			checkPanels(t, d)
		})
	}
}

// checkPanels finds panels without words or queries, and two at one place.
func checkPanels(t *testing.T, d grafana.Dashboard) {
	t.Helper()
	known := map[string]bool{"datasource": true, "__rate_interval": true}
	for _, v := range d.Templating.List {
		known[v.Name] = true
	}
	ids, titles, taken := map[uint32]bool{}, map[string]bool{}, map[[2]uint32]string{}
	sentence := regexp.MustCompile(`^[A-Z0-9].*\.$`)
	for _, one := range d.Panels {
		p := one.Panel
		if p == nil || p.Id == nil || p.Title == nil || p.Description == nil || p.GridPos == nil {
			t.Fatalf("a panel without id, title, description or place: %+v", one)
		}
		if ids[*p.Id] || titles[*p.Title] || *p.Title == "" || !sentence.MatchString(*p.Description) {
			t.Errorf("panel %d %q: id or title is there twice, or its description is no sentence: %q", *p.Id, *p.Title, *p.Description)
		}
		ids[*p.Id], titles[*p.Title] = true, true
		if p.Datasource == nil || p.Datasource.Uid == nil || *p.Datasource.Uid != "${datasource}" {
			t.Errorf("%s is not of the chosen data source", *p.Title)
		}
		if p.FieldConfig == nil || p.FieldConfig.Defaults.Unit == nil || *p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("%s has no unit", *p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]uint32{x, y}]; other != "" || x >= columns {
					t.Fatalf("%s overlaps %q at %d, %d", *p.Title, other, x, y)
				}
				taken[[2]uint32{x, y}] = *p.Title
			}
		}
		checkQueries(t, p, known)
	}
	if len(ids) < 10 {
		t.Errorf("%d panels", len(ids))
	}
}

func checkQueries(t *testing.T, p *grafana.Panel, known map[string]bool) {
	t.Helper()
	if len(p.Targets) == 0 {
		t.Errorf("%s has no query", *p.Title)
	}
	refs := map[string]bool{}
	for _, target := range p.Targets {
		q, is := target.(*prometheus.Dataquery)
		if !is || q.Expr == "" || q.RefId == nil || refs[*q.RefId] {
			t.Fatalf("%s has a query that is empty, no Prometheus query, or of an id that is there twice: %+v", *p.Title, target)
		}
		refs[*q.RefId] = true
		if p.Type == "timeseries" && (q.LegendFormat == nil || *q.LegendFormat == "") {
			t.Errorf("%s has a line without a name", *p.Title)
		}
		for _, v := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
			if !known[v[1]] {
				t.Errorf("%s: %s: the dashboard has no variable %s", *p.Title, q.Expr, v[1])
			}
		}
	}
}
