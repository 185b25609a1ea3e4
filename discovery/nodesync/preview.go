package nodesync

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Preview lists what a Sync would change, one line each, sorted: "+ key=value"
// for what is new, "- key=value" for what goes, "~ key=old -> new" for a new
// value; taints follow as "+ taint key=value:effect".
func Preview(node *corev1.Node, want Desired) (changes []string, conflicts []Conflict) {
	labels := planLabels(node, want.Labels, want.Force)
	for key, managers := range LabelOwners(node) {
		if _, kept := labels.apply[key]; !kept && slices.Equal(managers, []string{wellknown.FieldManager}) {
			changes = append(changes, fmt.Sprintf("- %s=%s", key, node.Labels[key]))
		}
	}
	for key, value := range labels.apply {
		switch old, there := node.Labels[key]; {
		case !there:
			changes = append(changes, fmt.Sprintf("+ %s=%s", key, value))
		case old != value:
			changes = append(changes, fmt.Sprintf("~ %s=%s -> %s", key, old, value))
		}
	}
	slices.Sort(changes)
	taints := planTaints(node, &want)
	missing := func(list []corev1.Taint, sign string, in []corev1.Taint) {
		for _, t := range list {
			if !slices.ContainsFunc(in, func(o corev1.Taint) bool { return o.MatchTaint(&t) && o.Value == t.Value }) {
				changes = append(changes, sign+" taint "+t.ToString())
			}
		}
	}
	missing(node.Spec.Taints, "-", taints.taints)
	missing(taints.taints, "+", node.Spec.Taints)
	return changes, sorted(slices.Concat(labels.conflicts, taints.conflicts))
}
