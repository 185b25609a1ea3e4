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

// Labeler makes the labels of nodes.
type Labeler struct {
	tiers Tiers
	keys  map[string][]string // By kind.
}

// NewLabeler is for one snapshot.
func NewLabeler(tiers Tiers, templates []Template) *Labeler {
	l := &Labeler{tiers: tiers, keys: map[string][]string{}}
	for i, kind := range tiers {
		for _, t := range templates {
			l.keys[kind] = append(l.keys[kind], t.Key(i+1, kind))
		}
	}
	return l
}

// Labels are a node's, by the groups that hold it. A group whose name is no
// label value gives none.
func (l *Labeler) Labels(holders []*fabric.Element) map[string]string {
	out := make(map[string]string, len(holders))
	for _, h := range holders {
		if wellknown.CheckValue(h.Name) != nil {
			continue
		}
		for _, key := range l.keys[h.Kind] {
			out[key] = h.Name
		}
	}
	return out
}

// All are the labels of every node of a snapshot, in the tree's order. The map
// is the caller's.
func (l *Labeler) All(s *fabric.Snapshot) iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		for holders, e := range s.All() {
			if e.Kind == v1alpha1.KindNode && !yield(e.Name, l.Labels(holders)) {
				return
			}
		}
	}
}

// LabeledNode is a Node with heddle's labels only.
type LabeledNode struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
}

// LabeledNodes are the nodes of a snapshot that get labels.
func LabeledNodes(s *fabric.Snapshot, tiers Tiers, templates []Template) []LabeledNode {
	out := []LabeledNode{}
	for name, labels := range NewLabeler(tiers, templates).All(s) {
		if len(labels) > 0 {
			n := LabeledNode{APIVersion: "v1", Kind: "Node"}
			n.Metadata.Name, n.Metadata.Labels = name, labels
			out = append(out, n)
		}
	}
	return out
}
