// Package export converts the fabric's tree to the formats of other projects:
// Node labels, Volcano HyperNodes, a Kueue Topology, Slurm's topology files.
//
// It owns those shapes and the numbers of the tiers. It is pure: snapshots in,
// values and text out. Packages publish and httpapi write them.
package export

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// The formats of GET /v1/export/{format}.
const (
	FormatSlurmTree  = "slurm-tree"
	FormatSlurmBlock = "slurm-block"
	FormatHyperNodes = "hypernodes"
	FormatKueue      = "kueue-topology"
	FormatNodes      = "node-labels"
)

// Tiers are the kinds of the tree's groups, the lowest first: Tiers[0] is tier
// 1. A level without a group is not counted, so that tiers are without gaps.
type Tiers []string

// TiersOf finds them.
func TiersOf(levels []fabric.Level, s *fabric.Snapshot) Tiers {
	there := map[string]bool{}
	mark(s.Child, there)
	var out Tiers
	for _, l := range slices.Backward(levels) {
		if there[l.Kind] {
			out = append(out, l.Kind)
		}
	}
	return out
}

func mark(list []*fabric.Element, there map[string]bool) {
	for _, e := range list {
		if e.Kind != v1alpha1.KindNode {
			there[e.Kind] = true
			mark(e.Child, there)
		}
	}
}

// of is the number of a kind, from 1; 0 if it is none.
func (t Tiers) of(kind string) int { return slices.Index(t, kind) + 1 }

// Template makes a label key for each tier: a key in which {tier} stands for
// the number from 1, {tier0} for the number from 0, {kind} for the kind of
// group. Number 1, or 0, is the lowest.
type Template string

// DefaultTemplate makes heddle.dev/topology.tier-1 and so on.
const DefaultTemplate Template = wellknown.Prefix + "topology.tier-{tier}"

// The places in a template.
const (
	placeTier  = "{tier}"
	placeTier0 = "{tier0}"
	placeKind  = "{kind}"
)

// CheckTemplates returns every fault of templates. Two must not make one key.
func CheckTemplates(list []Template) error {
	if len(list) == 0 {
		return errors.New("no label template")
	}
	var faults []error
	keys := map[string]Template{}
	for _, t := range list {
		places := strings.Count(string(t), placeTier) + strings.Count(string(t), placeTier0) +
			strings.Count(string(t), placeKind)
		if places != 1 {
			faults = append(faults, fmt.Errorf("label template %.100q: write one of {tier}, {tier0} and {kind} once", string(t)))
			continue
		}
		for tier := 1; tier <= fabric.MaxLevels; tier++ {
			key := t.Key(tier, "kind"+strconv.Itoa(tier))
			if err := wellknown.CheckKey(key); err != nil {
				faults = append(faults, fmt.Errorf("label template %.100q: %w", string(t), err))
				break
			}
			if o, taken := keys[key]; taken {
				faults = append(faults, fmt.Errorf("label templates %.100q and %.100q both make %s", string(o), string(t), key))
				break
			}
			keys[key] = t
		}
	}
	return errors.Join(faults...)
}

// Key is the label of a tier, counted from 1.
func (t Template) Key(tier int, kind string) string {
	return strings.NewReplacer(placeTier, strconv.Itoa(tier), placeTier0, strconv.Itoa(tier-1), placeKind, kind).
		Replace(string(t))
}

// Patterns match the keys of all tiers, as wellknown.Match does.
func Patterns(list []Template) []string {
	places := strings.NewReplacer(placeTier, "*", placeTier0, "*", placeKind, "*")
	patterns := make([]string, len(list))
	for i, t := range list {
		patterns[i] = places.Replace(string(t))
	}
	return patterns
}

// Labels are those of every node of a snapshot, by the groups that hold it, in
// the tree's order. A group whose name is no label value gives none. The map is
// the caller's.
func Labels(s *fabric.Snapshot, tiers Tiers, templates []Template) iter.Seq2[string, map[string]string] {
	keys := map[string][]string{} // By kind.
	for i, kind := range tiers {
		for _, t := range templates {
			keys[kind] = append(keys[kind], t.Key(i+1, kind))
		}
	}
	return func(yield func(string, map[string]string) bool) {
		for holders, e := range s.All() {
			if e.Kind != v1alpha1.KindNode {
				continue
			}
			if !yield(e.Name, labelsOf(holders, keys)) {
				return
			}
		}
	}
}

func labelsOf(holders []*fabric.Element, keys map[string][]string) map[string]string {
	labels := make(map[string]string, len(holders))
	for _, h := range holders {
		if wellknown.CheckValue(h.Name) != nil {
			continue
		}
		for _, key := range keys[h.Kind] {
			labels[key] = h.Name
		}
	}
	return labels
}

// LabeledNodes are the nodes of a snapshot that get labels, with these only.
func LabeledNodes(s *fabric.Snapshot, tiers Tiers, templates []Template) []Object {
	out := []Object{}
	for name, labels := range Labels(s, tiers, templates) {
		if len(labels) > 0 {
			out = append(out, Object{APIVersion: "v1", Kind: "Node", Metadata: ObjectMetadata{Name: name, Labels: labels}})
		}
	}
	return out
}
