// Package grafana reads what a test needs of a Grafana dashboard: its queries, with
// variables replaced as Grafana replaces them.
package grafana

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Dashboard is one, as its file has it.
type Dashboard struct {
	UID        string `json:"uid"`
	Templating struct {
		List []struct {
			Definition string `json:"definition"`
			AllValue   string `json:"allValue"`
			Name       string `json:"name"`
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		Title       string `json:"title"`
		FieldConfig struct {
			Defaults struct {
				NoValue string `json:"noValue"`
			} `json:"defaults"`
		} `json:"fieldConfig"`
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
}

// Query is an expression of a panel, and what Grafana shows where no query of the
// panel has a result, or nothing.
type Query struct{ Panel, Expr, Empty string }

// Decode reads a dashboard's file.
func Decode(text []byte) (*Dashboard, error) {
	d := &Dashboard{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("decode dashboard: %w", err)
	}
	return d, nil
}

// Queries are those of all panels, for all values of the variables, and with rates
// over a minute.
func (d *Dashboard) Queries() (all []Query) {
	replace := []string{"$__rate_interval", "1m"}
	for _, v := range d.Templating.List {
		replace = append(replace, "$"+v.Name, v.AllValue)
	}
	replacer := strings.NewReplacer(replace...)
	for _, p := range d.Panels {
		for _, t := range p.Targets {
			all = append(all, Query{p.Title, replacer.Replace(t.Expr), p.FieldConfig.Defaults.NoValue})
		}
	}
	return all
}

// Variables are the values of each variable, as expressions.
func (d *Dashboard) Variables() (all []string) {
	values := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	for _, v := range d.Templating.List {
		if m := values.FindStringSubmatch(v.Definition); m != nil {
			all = append(all, fmt.Sprintf("group by (%s) (%s)", m[2], m[1]))
		}
	}
	return all
}
