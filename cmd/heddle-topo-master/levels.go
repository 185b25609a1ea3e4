package main

import (
	"fmt"
	"strconv"
	"strings"

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
