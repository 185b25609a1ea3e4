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

// Template makes label keys of the groups that hold a node: a key in which {kind}
// stands for the kind of group, {tier} for the kind's number among those that the
// fleet has, from 1 for the lowest, {tier0} for the number from 0. Numbers change
// with what other nodes have, kinds do not. Topograph stands for more than one key.
type Template string

const (
	// DefaultTemplate makes heddle.dev/topology.leaf and so on.
	DefaultTemplate Template = wellknown.TopologyPrefix + "{kind}"
	// NumberedTemplate makes heddle.dev/topology.tier-1 and so on, as before there were
	// DefaultTemplate.
	NumberedTemplate Template = wellknown.TopologyPrefix + "tier-{tier}"
	// TopographTemplate makes the labels of NVIDIA topograph: the fabric's groups by their
	// distance from the node, and its NVLink domain
	// (https://docs.nvidia.com/topograph/reference/node-labels-and-annotations).
	TopographTemplate Template = "topograph"
)

// DefaultTemplates are those that need no configuration.
func DefaultTemplates() []Template { return []Template{DefaultTemplate, NumberedTemplate} }

// Topograph's keys.
const (
	topographTier   = "fabric.topograph.run/tier-"
	topographDomain = "accelerator.topograph.run/domain"
)

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
		if t != TopographTemplate && places != 1 {
			faults = append(faults, fmt.Errorf("label template %.100q: write one of {tier}, {tier0} and {kind} once", string(t)))
			continue
		}
		for _, key := range t.examples() {
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

// examples are keys that the template makes: all of them, but for kinds.
func (t Template) examples() []string {
	var out []string
	if t == TopographTemplate {
		out = append(out, topographDomain)
	}
	for tier := 1; tier <= fabric.MaxLevels; tier++ {
		out = append(out, t.Key(tier, "kind"+strconv.Itoa(tier)))
	}
	return out
}

// Key is the label of a kind with that number, counted from 1.
func (t Template) Key(tier int, kind string) string {
	if t == TopographTemplate {
		t = topographTier + placeTier0
	}
	return strings.NewReplacer(placeTier, strconv.Itoa(tier), placeTier0, strconv.Itoa(tier-1), placeKind, kind).
		Replace(string(t))
}

// byKind reports whether the key of a kind is the same in every fleet.
func (t Template) byKind() bool { return strings.Contains(string(t), placeKind) }

// Patterns match the keys of all groups, as wellknown.Match does.
func Patterns(list []Template) []string {
	places := strings.NewReplacer(placeTier, "*", placeTier0, "*", placeKind, "*")
	var patterns []string
	for _, t := range list {
		if t == TopographTemplate {
			patterns = append(patterns, topographTier+"*", topographDomain)
		} else {
			patterns = append(patterns, places.Replace(string(t)))
		}
	}
	return patterns
}

// nodes are the nodes of a snapshot with the groups that hold them, top first: of
// the tree, then NVLink domains that cross it. The list is good until the next step
// only.
func nodes(s *fabric.Snapshot) iter.Seq2[[]*fabric.Element, *fabric.Element] {
	crossing := map[*fabric.Element][]*fabric.Element{}
	for _, domain := range s.Crossing {
		for _, n := range domain.Child {
			crossing[n] = append(crossing[n], domain)
		}
	}
	return func(yield func([]*fabric.Element, *fabric.Element) bool) {
		var all []*fabric.Element
		for holders, e := range s.All() {
			if e.Kind != v1alpha1.KindNode {
				continue
			}
			all = append(append(all[:0], holders...), crossing[e]...)
			if !yield(all, e) {
				return
			}
		}
	}
}

// Labels are those of every node of a snapshot, by the groups that hold it, in
// the tree's order. A group whose name is no label value gives none; no templates
// give none. The map is the caller's.
func Labels(s *fabric.Snapshot, tiers Tiers, templates []Template) iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		for holders, e := range nodes(s) {
			holders = slices.DeleteFunc(holders, func(h *fabric.Element) bool { return wellknown.CheckValue(h.Name) != nil })
			labels := make(map[string]string, len(holders)*len(templates)+1)
			for _, t := range templates {
				t.label(labels, holders, tiers)
			}
			if !yield(e.Name, labels) {
				return
			}
		}
	}
}

// label adds a node's labels.
func (t Template) label(labels map[string]string, holders []*fabric.Element, tiers Tiers) {
	if t.byKind() {
		labels[wellknown.TopologyShape] = shapeOf(holders)
	}
	distance := 0
	for _, h := range slices.Backward(holders) {
		switch {
		case t != TopographTemplate:
			labels[t.Key(tiers.of(h.Kind), h.Kind)] = h.Name
		case h.NVLink:
			labels[topographDomain] = h.Name
		default:
			distance++
			labels[t.Key(distance, "")] = h.Name
		}
	}
}

// shapeOf is the kinds of a node's groups, top first, as a label's value: nodes of
// one shape have labels with the same keys. No group's name is like it: those
// begin with a kind and a hyphen.
func shapeOf(holders []*fabric.Element) string {
	if len(holders) == 0 {
		return v1alpha1.KindNode
	}
	kinds := make([]string, len(holders))
	for i, h := range holders {
		kinds[i] = h.Kind
	}
	return strings.Join(kinds, ".")
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
