// Package fit counts how many pods of one class fit on a node.
//
// It owns what makes pods alike, what of a node counts against them (taints,
// required node affinity, unschedulable, Ready, every resource, reservations of
// other gangs), and a cache by node generation. It is what the scheduler's own
// filters decide by resources and static rules, without running them: the others
// (volumes, inter-pod affinity but for one pod per host) run on the nodes that a
// plan chose. It chooses no node.
package fit

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/component-helpers/resource"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// Amounts are how much of each resource, in thousandths for cpu, else in units.
type Amounts map[corev1.ResourceName]int64

// Add adds other amounts, so many times.
func (a Amounts) Add(b Amounts, times int64) {
	for name, value := range b {
		a[name] += value * times
	}
}

// Key is equal for pods that fit on the same nodes in the same numbers.
type Key [sha256.Size]byte

// Class is a set of pods that are alike. It is not changed once made.
type Class struct {
	Key Key
	// Amounts are what one pod asks for, without zeros.
	Amounts Amounts

	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
	nodeName    string
	// exclusive pods never share a node with each other: they want a port of the
	// host, or repel each other.
	exclusive bool
	// hcas are as [HCAs] has them.
	hcas Amounts
	// selector is nil if the pods accept any GPU.
	selector *sgpu.Selector
}

// ClassOf is the class of a pod. Its selector counts if it requests whole GPUs;
// resources named in ignored count for nothing.
func ClassOf(pod *corev1.Pod, selector *sgpu.Selector, ignored ...corev1.ResourceName) *Class {
	c := &Class{
		Amounts:     Requests(pod, ignored...),
		affinity:    nodeaffinity.GetRequiredNodeAffinity(pod),
		tolerations: pod.Spec.Tolerations,
		nodeName:    pod.Spec.NodeName,
		hcas:        HCAs(pod, ignored...),
	}
	apart := selfMatching(pod, framework.GetPodAntiAffinityTerms(pod.Spec.Affinity))
	c.exclusive = wantsHostPort(pod) || slices.Contains(apart, corev1.LabelHostname)
	if selector != nil && c.Amounts[selector.Resource] > 0 {
		c.selector = selector
	}
	var required *corev1.NodeSelector
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	// Maps are marshaled sorted, so equal pods give equal text. Nothing in it
	// can fail to marshal.
	text, _ := json.Marshal([]any{
		c.Amounts, pod.Spec.NodeSelector, required, c.tolerations, c.nodeName, c.exclusive, c.selector.String(), c.hcas,
	})
	c.Key = sha256.Sum256(text)
	return c
}

// Requests are what a pod asks for, without zeros: itself is one of the pods that its node takes.
func Requests(pod *corev1.Pod, ignored ...corev1.ResourceName) Amounts {
	amounts := AmountsOf(resource.PodRequests(pod, resource.PodResourcesOptions{}), ignored...)
	amounts[corev1.ResourcePods] = 1
	return amounts
}

// AmountsOf are those of a list, without zeros.
func AmountsOf(list corev1.ResourceList, ignored ...corev1.ResourceName) Amounts {
	amounts := Amounts{}
	for name, quantity := range list {
		value := quantity.Value()
		if name == corev1.ResourceCPU {
			value = quantity.MilliValue()
		}
		if value > 0 && !slices.Contains(ignored, name) {
			amounts[name] = value
		}
	}
	return amounts
}

// Eligible reports whether a node takes such pods at all, however much is free.
// A nil class is eligible everywhere.
func (c *Class) Eligible(node *corev1.Node) bool {
	if c == nil {
		return node != nil
	}
	return c.obstacle(node) == ""
}

// Obstacle is why a node takes no such pods, however much is free; empty if it does. The node
// is nil if it is gone.
func (c *Class) Obstacle(node *corev1.Node) string {
	switch what := c.obstacle(node); what {
	case tainted:
		var all []string
		for _, t := range c.repelling(node) {
			all = append(all, t.ToString())
		}
		if len(all) == 1 {
			return "taint " + all[0]
		}
		return "taints " + strings.Join(all, ", ")
	case lacksHCAs:
		return fmt.Sprintf("%s: fewer HCAs than a container asks for", LacksHCAs(node, c.hcas))
	default:
		return what
	}
}

const tainted, lacksHCAs = "taint", "HCAs"

// obstacle is what keeps such pods off a node. It makes no text, since it is asked for
// every node.
func (c *Class) obstacle(node *corev1.Node) string {
	switch {
	case node == nil:
		return "deleted"
	case c.nodeName != "" && c.nodeName != node.Name:
		return "the pod names another node"
	case !ready(node):
		return "not Ready"
	case node.Spec.Unschedulable && c.repels(&corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}):
		return "cordoned"
	case len(c.repelling(node)) > 0:
		return tainted
	case LacksHCAs(node, c.hcas) != "":
		return lacksHCAs
	case !c.selects(node):
		return "node selector or affinity"
	}
	return ""
}

// selects reports whether the pods' node selector and required affinity select a node.
func (c *Class) selects(node *corev1.Node) bool {
	match, err := c.affinity.Match(node)
	return match && err == nil
}

// repelling are the taints of a node that keep such pods off it.
func (c *Class) repelling(node *corev1.Node) (taints []*corev1.Taint) {
	for i := range node.Spec.Taints {
		if t := &node.Spec.Taints[i]; c.repels(t) {
			taints = append(taints, t)
		}
	}
	return taints
}

// repels reports whether the pods do not tolerate a taint, PreferNoSchedule left out.
func (c *Class) repels(t *corev1.Taint) bool {
	return t.Effect != corev1.TaintEffectPreferNoSchedule &&
		!schedulehelpers.TolerationsTolerateTaint(logr.Discard(), c.tolerations, t, false)
}

// ready is true without a Ready condition. The taint for a node that is not
// ready comes later than the condition.
func ready(node *corev1.Node) bool {
	_, c := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	return c == nil || c.Status == corev1.ConditionTrue
}

func wantsHostPort(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort > 0 })
	})
}

// Spreads reports whether a node counts for a topologySpreadConstraint of such pods: one
// that the pods' affinity selects, and if the constraint honors taints, that they tolerate.
func (c *Class) Spreads(node *corev1.Node, constraint *corev1.TopologySpreadConstraint) bool {
	affinity, taints := constraint.NodeAffinityPolicy, constraint.NodeTaintsPolicy
	return (affinity != nil && *affinity != corev1.NodeInclusionPolicyHonor || c.selects(node)) &&
		(taints == nil || *taints != corev1.NodeInclusionPolicyHonor || len(c.repelling(node)) == 0)
}

// Together is the label of which pods of one kind must have the same value, by required
// affinity to each other; empty if there is none.
func Together(pod *corev1.Pod) string {
	return append(selfMatching(pod, framework.GetPodAffinityTerms(pod.Spec.Affinity)), "")[0]
}

// selfMatching are the topology keys of the terms that match the pod itself. Of its namespace
// the name is known, and no other label.
func selfMatching(pod *corev1.Pod, terms []corev1.PodAffinityTerm) (keys []string) {
	read, _ := framework.GetAffinityTerms(pod, terms) // The API server rejects what cannot be read.
	for i := range read {
		if read[i].Matches(pod, labels.Set{corev1.LabelMetadataName: pod.Namespace}) {
			keys = append(keys, read[i].TopologyKey)
		}
	}
	return keys
}

// HCAs are what may be HCAs of what a pod asks for: resources of which one container
// asks for several, with the most that one does. Whether they are HCAs its node
// knows. Containers of a pod can share HCAs, so the sum of them is no measure.
func HCAs(pod *corev1.Pod, ignored ...corev1.ResourceName) Amounts {
	hcas := Amounts{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		// Of an extended resource the request is the limit.
		for name, quantity := range c.Resources.Limits {
			n := quantity.Value()
			if n > max(1, hcas[name]) && strings.Contains(string(name), "/") && !slices.Contains(ignored, name) {
				hcas[name] = n
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
