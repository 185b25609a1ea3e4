package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// parseLevels reads --levels: kind=evidence with commas between, and the number
// of nodes behind a colon for blocks: rack=path,pair=block:2.
func parseLevels(text string) ([]fabric.Level, error) {
	if text == "" {
		return nil, nil
	}
	var out []fabric.Level
	for part := range strings.SplitSeq(text, ",") {
		kind, by, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return nil, fmt.Errorf("%.60q is not kind=evidence", part)
		}
		l := fabric.Level{Kind: kind}
		by, nodes, counted := strings.Cut(by, ":")
		l.By = fabric.Evidence(by)
		if counted {
			n, err := strconv.Atoi(nodes)
			if err != nil {
				return nil, fmt.Errorf("%.60q: %.20q is no number of nodes", part, nodes)
			}
			l.Nodes = n
		}
		out = append(out, l)
	}
	return out, fabric.CheckLevels(out)
}

// preset is the levels that flags and configuration result in; flags win.
func (o *options) preset(t *config.Topology) ([]fabric.Level, error) {
	mode := fabric.Mode(cmp.Or(o.mode, string(t.Mode)))
	if mode != fabric.ModeCustom {
		return fabric.Preset(mode, cmp.Or(o.nodeNumber, t.NodeNumber))
	}
	levels := o.levels
	if len(levels) == 0 {
		levels = configured(t.Levels)
	}
	if len(levels) == 0 {
		return nil, errors.New("mode custom: give the levels with --levels or as topology.levels of the configuration")
	}
	return levels, fabric.CheckLevels(levels)
}

// configured are the levels of a configuration.
func configured(in []config.TopologyLevel) []fabric.Level {
	out := make([]fabric.Level, len(in))
	for i, l := range in {
		out[i] = fabric.Level{Kind: string(l.Kind), By: fabric.Evidence(l.By), Nodes: l.Nodes}
	}
	return out
}
