// Package export converts the fabric's tree to the formats of other projects:
// Node labels, Volcano HyperNodes, Topologies of Kueue and KAI, Slurm's topology
// files.
//
// It owns those shapes and the numbers of the tiers. It is pure: snapshots in,
// values and text out. Packages publish and httpapi write them.
package export

import (
	"slices"

	"github.com/heddle-dev/heddle/topo/fabric"
)

// The names of exports: in --exports, in GET /v1/export/{format} and in heddle topo
// export.
const (
	FormatLabels     = "labels"
	FormatHyperNode  = "hypernode"
	FormatKueue      = "kueue"
	FormatKAI        = "kai"
	FormatSlurm      = "slurm"
	FormatSlurmBlock = "slurm-block"
	FormatSlurmYAML  = "slurm-yaml"
)

// Formats returns the formats of GET /v1/export/{format}.
func Formats() []string {
	return []string{
		FormatSlurm, FormatSlurmBlock, FormatSlurmYAML, FormatKueue, FormatKAI, FormatHyperNode, FormatLabels,
	}
}

// Tiers are the kinds of the tree's groups, the lowest first: Tiers[0] is tier
// 1. A level without a group is not counted, so that tiers are without gaps.
type Tiers []string

// TiersOf returns the tiers of a tree with these levels.
func TiersOf(levels []fabric.Level, s *fabric.Snapshot) Tiers {
	there := map[string]bool{}
	for _, e := range fabric.All(slices.Concat(s.Child, s.Crossing)) {
		there[e.Kind] = true
	}
	var out Tiers
	for _, l := range slices.Backward(levels) {
		if there[l.Kind] {
			out = append(out, l.Kind)
		}
	}
	return out
}

// of returns the number of a kind, from 1; 0 if no group has it.
func (t Tiers) of(kind string) int { return slices.Index(t, kind) + 1 }
