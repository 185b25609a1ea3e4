package main

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// schemaVersion is Grafana 11's; later ones read it.
const schemaVersion = 39

// object is a JSON object; its keys are written in order of the alphabet.
type object = map[string]any

// json is the dashboard as Grafana reads it.
func (d dashboard) json() ([]byte, error) {
	variables := []any{object{
		"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
	}}
	for _, v := range d.variables {
		values := fmt.Sprintf("label_values(%s, %s)", v.metric, v.label)
		variables = append(variables, object{
			"name": v.label, "type": "query", "datasource": source(), "query": object{"query": values, "refId": v.label},
			"definition": values, "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
			"current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}},
		})
	}
	head, err := json.Marshal(object{
		"uid": "heddle-" + d.name, "title": d.title, "description": d.description, "tags": []string{"heddle"},
		"schemaVersion": schemaVersion, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "1m", "timezone": "browser",
		"time": object{"from": "now-6h", "to": "now"}, "templating": object{"list": variables}, "annotations": object{"list": []any{}},
		"links": []any{object{
			"title": "heddle", "type": "dashboards", "tags": []string{"heddle"}, "asDropdown": true, "includeVars": true, "keepTime": true,
			"icon": "external link", "targetBlank": false, "tooltip": "", "url": "",
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	// A panel is a line, so that a change shows which.
	text := append(bytes.TrimSuffix(head, []byte("}")), ",\n\"panels\": [\n"...)
	for i, p := range d.layout() {
		line, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("encode panel %q: %w", d.panels[i].title, err)
		}
		if i > 0 {
			text = append(text, ",\n"...)
		}
		text = append(text, line...)
	}
	return append(text, "\n]}\n"...), nil
}

// source is the Prometheus that is chosen at the top of the dashboard.
func source() object { return object{"type": "prometheus", "uid": "${datasource}"} }

// layout places panels from left to right; a row is as high as its highest panel.
func (d dashboard) layout() (panels []object) {
	x, y, high := 0, 0, 0
	for i, p := range d.panels {
		if x+p.width > columns {
			x, y, high = 0, y+high, 0
		}
		panels = append(panels, p.json(i+1, object{"x": x, "y": y, "w": p.width, "h": p.height}))
		x, high = x+p.width, max(high, p.height)
	}
	return panels
}

func (p panel) json(id int, at object) object {
	defaults := object{"unit": p.unit}
	if p.empty != "" {
		defaults["noValue"] = p.empty
	}
	made := object{
		"id": id, "type": p.kind, "title": p.title, "description": p.description, "datasource": source(), "gridPos": at,
		"fieldConfig": object{"defaults": defaults, "overrides": []any{}},
	}
	switch p.kind {
	case kindTable:
		// Grafana adds a column with the time of the query.
		made["transformations"] = []any{object{"id": "organize", "options": object{"excludeByName": object{"Time": true}}}}
	case kindLines:
		defaults["min"] = 0
	}
	var targets []any
	for i, q := range p.queries {
		target := object{"refId": string(rune('A' + i)), "expr": q.expr, "datasource": source()}
		switch {
		case p.kind == kindTable:
			target["format"], target["instant"] = "table", true
		case q.legend != "":
			target["legendFormat"] = q.legend
		}
		targets = append(targets, target)
	}
	made["targets"] = targets
	return made
}
