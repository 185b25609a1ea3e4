//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/master/export"
)

// kueueView is, for each Topology that topo-master has for Kueue, how many of the
// nodes of its shape have all its levels. A node that is in none is an error: Kueue
// would never use it.
func (s *stage) kueueView(ctx context.Context) (string, error) {
	text, err := s.Kubectl(ctx, "get", "nodes", "-o", "json")
	if err != nil {
		return "", err
	}
	var nodes corev1.NodeList
	if err := json.Unmarshal([]byte(text), &nodes); err != nil {
		return "", fmt.Errorf("read the nodes: %w", err)
	}
	body, err := s.ask(ctx, "/v1/export/"+export.FormatKueue)
	if err != nil {
		return "", err
	}
	var topologies struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec export.TopologySpec `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &topologies); err != nil {
		return "", fmt.Errorf("read the topologies: %w", err)
	}
	var out strings.Builder
	seen := 0
	for _, t := range topologies.Items {
		shape := strings.ReplaceAll(strings.TrimPrefix(t.Metadata.Name, export.TopologyPrefix), "-", ".")
		in := 0
		for i := range nodes.Items {
			labels := nodes.Items[i].Labels
			lacks := func(l export.TopologyLevel) bool { return labels[l.NodeLabel] == "" }
			if labels[wellknown.TopologyShape] == shape && !slices.ContainsFunc(t.Spec.Levels, lacks) {
				in++
			}
		}
		if seen += in; in > 0 {
			fmt.Fprintf(&out, "%-28s %3d nodes\n", t.Metadata.Name, in)
		}
	}
	if seen != len(nodes.Items) {
		return "", fmt.Errorf("kueue would see %d of %d nodes:\n%s", seen, len(nodes.Items), out.String())
	}
	return out.String(), nil
}
