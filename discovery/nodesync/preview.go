package nodesync

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Preview lists what a Sync would change, one line each, sorted: "+ key=value"
// for what is new, "- key=value" for what goes, "~ key=old -> new" for a new
// value; taints follow as "+ taint key=value:effect".
func Preview(node *corev1.Node, want Desired) (changes []string, conflicts []Conflict) {
	labels := planLabels(node, want.Labels, want.Force)
	after := maps.Clone(labels.apply)
	for key, managers := range labelOwners(node.ManagedFields) {
		if _, kept := after[key]; !kept && slices.Equal(managers, []string{wellknown.FieldManager}) {
			changes = append(changes, fmt.Sprintf("- %s=%s", key, node.Labels[key]))
		}
	}
	for key, value := range after {
		switch old, there := node.Labels[key]; {
		case !there:
			changes = append(changes, fmt.Sprintf("+ %s=%s", key, value))
		case old != value:
			changes = append(changes, fmt.Sprintf("~ %s=%s -> %s", key, old, value))
		}
	}
	slices.Sort(changes)
	taints := planTaints(node, want.Taints)
	for _, t := range node.Spec.Taints {
		if !containsTaint(taints.taints, t) {
			changes = append(changes, "- taint "+FormatTaint(t))
		}
	}
	for _, t := range taints.taints {
		if !containsTaint(node.Spec.Taints, t) {
			changes = append(changes, "+ taint "+FormatTaint(t))
		}
	}
	conflicts = slices.Concat(labels.conflicts, taints.conflicts)
	sortConflicts(conflicts)
	return changes, conflicts
}

// LabelOwners lists, for every label key of a Node, the field managers that
// hold it, sorted: [wellknown.FieldManager] for what discovery applied.
func LabelOwners(node *corev1.Node) map[string][]string { return labelOwners(node.ManagedFields) }

func containsTaint(list []corev1.Taint, t corev1.Taint) bool {
	return slices.ContainsFunc(list, func(o corev1.Taint) bool {
		return taintID(o) == taintID(t) && o.Value == t.Value
	})
}
