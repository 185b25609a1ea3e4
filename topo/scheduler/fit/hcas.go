package fit

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// HCAs are what may be HCAs of what a pod asks for: resources of which one container
// asks for several, with the most that one does. Whether they are HCAs its node
// knows. Containers of a pod can share HCAs, so the sum of them is no measure.
func HCAs(pod *corev1.Pod, ignored ...corev1.ResourceName) Amounts {
	hcas := Amounts{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			// Of an extended resource the request is the limit.
			for name, quantity := range list[i].Resources.Limits {
				n := quantity.Value()
				if n > max(1, hcas[name]) && strings.Contains(string(name), "/") && !slices.Contains(ignored, name) {
					hcas[name] = n
				}
			}
		}
	}
	return hcas
}

// LacksHCAs is the first resource, by name, of which a container asks for more HCAs
// than the node has; empty if there is none, and where the node does not publish how
// many it has. The node's capacity does not show it: it counts each HCA once for every
// container that may share it.
func LacksHCAs(node *corev1.Node, hcas Amounts) corev1.ResourceName {
	text := node.Annotations[wellknown.HCACounts]
	if text == "" || len(hcas) == 0 {
		return ""
	}
	var counts *allocation.HCACounts
	for _, name := range slices.Sorted(maps.Keys(hcas)) {
		if !strings.Contains(text, `"`+string(name)+`"`) {
			continue // Most pods ask for GPUs only.
		}
		if counts == nil {
			var err error
			if counts, err = allocation.ParseHCACounts(text); err != nil {
				return ""
			}
		}
		if n, ok := counts.HCAs[string(name)]; ok && int64(n) < hcas[name] {
			return name
		}
	}
	return ""
}
