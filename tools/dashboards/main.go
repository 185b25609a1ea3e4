// Command dashboards writes the chart's Grafana dashboards from their descriptions
// here, one file of the folder that it is given for each. It is a module of its own:
// heddle does not depend on Grafana's types, by which its tests read the files.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := "../../deploy/helm/heddle/dashboards"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := write(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(dir string) error {
	for _, d := range []dashboard{fleet(), node(), shares(), gangs(), fabric()} {
		text, err := d.json()
		if err != nil {
			return fmt.Errorf("dashboard %s: %w", d.name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, d.name+".json"), text, 0o644); err != nil { //nolint:gosec // Part of the repository.
			return fmt.Errorf("write dashboard: %w", err)
		}
	}
	return nil
}

// dashboard is one page of Grafana; its panels stand in rows from left to right, as many as have room.
type dashboard struct {
	name, title, description string
	variables                []variable
	panels                   []panel
}

// variable is a choice at the top of a dashboard: the values of a label of a metric.
type variable struct{ label, metric string }

// panel is one picture of a dashboard.
type panel struct {
	kind, title, unit, description string
	width, height                  int
	queries                        []query
	// empty is the text where no query has a result, for panels that can be empty.
	empty string
}

// query is an expression of PromQL, and the name of a line of it.
type query struct{ expr, legend string }

const (
	// columns of Grafana's grid.
	columns = 24

	kindNumber = "stat"
	kindLines  = "timeseries"
	kindTable  = "table"
)

// number is a panel with the newest value of an expression.
func number(title, unit, description, expr string) panel {
	return panel{kind: kindNumber, title: title, unit: unit, description: description, width: 4, height: 4, queries: []query{{expr: expr}}}
}

// lines is a panel with values over time.
func lines(title, unit, description string, queries ...query) panel {
	return panel{kind: kindLines, title: title, unit: unit, description: description, width: 8, height: 8, queries: queries}
}

// rows is a table of the newest values of an expression, with a column for each label.
func rows(title, unit, description, expr string) panel {
	return panel{kind: kindTable, title: title, unit: unit, description: description, width: 12, height: 8, queries: []query{{expr: expr}}}
}

// or is the panel of something that can be absent, with the text for that.
func (p panel) or(empty string) panel {
	p.empty = empty
	return p
}
