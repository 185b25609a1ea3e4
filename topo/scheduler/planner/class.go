package planner

import (
	"crypto/sha256"
	"encoding/json"
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
	"github.com/heddle-dev/heddle/topo/scheduler/claims"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// Amounts are amounts of resources by name: cpu in thousandths, others in units.
type Amounts map[corev1.ResourceName]int64

// Add adds other amounts several times.
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
	// Amounts are the requests of one pod, without zeros.
	Amounts Amounts
	// Claims has the demand of one pod's claims; nil without any.
	Claims *claims.Demand

	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
	nodeName    string
	// selective reports that the pods have a node selector or a required affinity.
	selective bool
	// exclusive pods never share a node with each other: they use a port of the host, or
	// have anti-affinity to each other.
	exclusive bool
	// anywhere ignores what keeps pods off a node: it is for amounts of a resource.
	anywhere bool
	// hcas is the result of [HCAs].
	hcas Amounts
	// selector is nil if the pods accept any GPU.
	selector *sgpu.Selector
	// own is the key without claims.
	own Key
}

// ClassOf returns the class of a pod. Its selector counts if it requests whole GPUs;
// ignored resources do not count.
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
	c.selective = required != nil || len(pod.Spec.NodeSelector) > 0
	// Maps are marshaled in order, so that equal pods have equal text. Marshaling these
	// types cannot fail.
	text, _ := json.Marshal([]any{
		c.Amounts, pod.Spec.NodeSelector, required, c.tolerations, c.nodeName, c.exclusive, c.selector.String(), c.hcas,
	})
	c.own = sha256.Sum256(text)
	c.Key = c.own
	return c
}

// With returns the class with other claims, nil for none.
func (c *Class) With(demand *claims.Demand) *Class {
	if demand == c.Claims {
		return c
	}
	out := *c
	if out.Claims, out.Key = demand, c.own; demand != nil {
		out.Key = sha256.Sum256(append(c.own[:], demand.Key[:]...))
	}
	return &out
}

// Requests returns what a pod requests, without zeros. The pod itself counts as one of the pods
// that its node takes.
func Requests(pod *corev1.Pod, ignored ...corev1.ResourceName) Amounts {
	amounts := AmountsOf(resource.PodRequests(pod, resource.PodResourcesOptions{}), ignored...)
	amounts[corev1.ResourcePods] = 1
	return amounts
}

// AmountsOf returns the amounts of a list, without zeros.
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

// Obstacle returns why a node takes no pods of the class, however much is free; empty if it
// takes them. The node is nil if it was deleted.
func (c *Class) Obstacle(node *corev1.Node) string {
	if c.anywhere {
		return ""
	}
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
	}
	if taints := c.repelling(node); len(taints) == 1 {
		return "taint " + taints[0]
	} else if len(taints) > 1 {
		return "taints " + strings.Join(taints, ", ")
	}
	if lacks := LacksHCAs(node, c.hcas); lacks != "" {
		return string(lacks) + ": fewer HCAs than a container asks for"
	}
	if !c.selects(node) {
		return "node selector or affinity"
	}
	return c.Claims.Obstacle(node)
}

// Selects reports whether the pods name the nodes that they accept, or need some that have several HCAs. gpus are
// the names of whole GPUs.
func (c *Class) Selects(gpus sgpu.GPUs) bool {
	for name := range c.hcas {
		if !slices.Contains(gpus, name) {
			return true
		}
	}
	return c.selective
}

// selects reports whether the pods' node selector and required affinity select a node.
func (c *Class) selects(node *corev1.Node) bool {
	match, err := c.affinity.Match(node)
	return match && err == nil
}

// repelling returns the taints of a node that keep pods of the class off it.
func (c *Class) repelling(node *corev1.Node) (taints []string) {
	for i := range node.Spec.Taints {
		if t := &node.Spec.Taints[i]; c.repels(t) {
			taints = append(taints, t.ToString())
		}
	}
	return taints
}

// repels reports whether a taint other than PreferNoSchedule is not tolerated.
func (c *Class) repels(t *corev1.Taint) bool {
	return t.Effect != corev1.TaintEffectPreferNoSchedule &&
		!schedulehelpers.TolerationsTolerateTaint(logr.Discard(), c.tolerations, t, false)
}

// ready is true without a Ready condition. The taint of a node that is not ready comes
// later than the condition.
func ready(node *corev1.Node) bool {
	_, c := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	return c == nil || c.Status == corev1.ConditionTrue
}

func wantsHostPort(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort > 0 })
	})
}

// Spreads reports whether a node counts for a topologySpreadConstraint of the pods: their
// affinity selects it, and they tolerate its taints if the constraint honors these.
func (c *Class) Spreads(node *corev1.Node, constraint *corev1.TopologySpreadConstraint) bool {
	affinity, taints := constraint.NodeAffinityPolicy, constraint.NodeTaintsPolicy
	return (affinity != nil && *affinity != corev1.NodeInclusionPolicyHonor || c.selects(node)) &&
		(taints == nil || *taints != corev1.NodeInclusionPolicyHonor || len(c.repelling(node)) == 0)
}

// Together returns the label that must have one value on the nodes of all pods of one kind, by
// their required affinity to each other; empty without such an affinity.
func Together(pod *corev1.Pod) string {
	return append(selfMatching(pod, framework.GetPodAffinityTerms(pod.Spec.Affinity)), "")[0]
}

// selfMatching returns the topology keys of the terms that match the pod itself. The name of
// its namespace is known, other labels of the namespace are not.
func selfMatching(pod *corev1.Pod, terms []corev1.PodAffinityTerm) (keys []string) {
	read, _ := framework.GetAffinityTerms(pod, terms) // The API server rejects what cannot be read.
	for i := range read {
		if read[i].Matches(pod, labels.Set{corev1.LabelMetadataName: pod.Namespace}) {
			keys = append(keys, read[i].TopologyKey)
		}
	}
	return keys
}

// HCAs returns the requests that may be for HCAs: extended resources with a container that requests
// several, and the largest request. Only the node knows whether they are HCAs. Containers of a pod
// can share HCAs, so the sum of their requests means nothing.
func HCAs(pod *corev1.Pod, ignored ...corev1.ResourceName) Amounts {
	hcas := Amounts{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		// The request of an extended resource equals its limit.
		for name, quantity := range c.Resources.Limits {
			n := quantity.Value()
			if n > max(1, hcas[name]) && strings.Contains(string(name), "/") && !slices.Contains(ignored, name) {
				hcas[name] = n
			}
		}
	}
	return hcas
}

// LacksHCAs returns the first resource, by name, with a container that requests more HCAs than the
// node has. It is empty if the node has enough or does not publish its HCAs. The node's capacity
// does not show it: it counts each HCA once for every container that may share it.
func LacksHCAs(node *corev1.Node, hcas Amounts) corev1.ResourceName {
	text := node.Annotations[wellknown.HCACounts]
	mentioned := func(name corev1.ResourceName) bool { return strings.Contains(text, `"`+string(name)+`"`) }
	names := slices.Sorted(maps.Keys(hcas))
	if !slices.ContainsFunc(names, mentioned) {
		return "" // Most pods request GPUs only.
	}
	counts, err := allocation.ParseHCACounts(text)
	if err != nil {
		return ""
	}
	for _, name := range names {
		if n, ok := counts.HCAs[string(name)]; ok && int64(n) < hcas[name] {
			return name
		}
	}
	return ""
}
