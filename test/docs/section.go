package docs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// Observability is the page of all metrics, alerts, Events and conditions. Tests of
// several packages make its sections.
const Observability = "docs/reference/metrics.md"

// Section compares a part of a page, which is between <!-- name --> and <!-- /name -->,
// with what it should be, or writes it.
func Section(tb testing.TB, root, page, name, want string, update bool) {
	tb.Helper()
	path := filepath.Join(root, page)
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	begin, end := "<!-- "+name+" -->\n\n", "\n<!-- /"+name+" -->"
	before, rest, opened := strings.Cut(string(text), begin)
	got, after, closed := strings.Cut(rest, end)
	if !opened || !closed {
		tb.Fatalf("%s has no section %s", page, name)
	}
	if update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			tb.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("%s, section %s, is stale: run this test with -update\n%s", page, name, diff)
	}
}

// Table is a table of Markdown.
func Table(rows ...[]string) string {
	var out strings.Builder
	for i, row := range rows {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", `\|`)
		}
		fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintf(&out, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	return out.String()
}

// Metrics is the table of heddle's metrics in a registry, but for the one that every
// program has. A collector that has no value yet is a gauge, or a counter by its name: a histogram must have one.
func Metrics(tb testing.TB, r *prometheus.Registry) string {
	tb.Helper()
	families, err := r.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	types := map[string]string{}
	for _, f := range families {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		r.Describe(descs)
		close(descs)
	}()
	found := map[string][]string{}
	for desc := range descs {
		row := describe(tb, desc.String())
		name := strings.Trim(row[0], "`")
		if !strings.HasPrefix(name, "heddle_") || name == "heddle_build_info" {
			continue
		}
		typ, known := types[name]
		switch {
		case known:
			row[1] = typ
		case strings.HasSuffix(name, "_total"):
			row[1] = "counter"
		case strings.HasSuffix(name, "_seconds") && !strings.HasSuffix(name, "_timestamp_seconds"):
			tb.Errorf("%s has no value, and may be a histogram", name)
		}
		found[name] = row
	}
	rows := [][]string{{"metric", "type", "labels", "meaning"}}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		rows = append(rows, found[name])
	}
	return Table(rows...)
}

// describe reads what a description is printed as, since it has no accessors.
func describe(tb testing.TB, text string) []string {
	tb.Helper()
	quoted := func(key string) string {
		_, rest, _ := strings.Cut(text, key+": ")
		prefix, err := strconv.QuotedPrefix(rest)
		if err == nil {
			prefix, err = strconv.Unquote(prefix)
		}
		if err != nil {
			tb.Fatalf("%s of %s: %v", key, text, err)
		}
		return prefix
	}
	var labels []string
	for _, key := range []string{"constLabels", "variableLabels"} {
		_, rest, _ := strings.Cut(text, key+": {")
		list, _, _ := strings.Cut(rest, "}")
		for label := range strings.SplitSeq(list, ",") {
			if name, _, _ := strings.Cut(label, "="); name != "" {
				labels = append(labels, "`"+name+"`")
			}
		}
	}
	return []string{"`" + quoted("fqName") + "`", "gauge", strings.Join(labels, ", "), quoted("help")}
}
