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
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/resource"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// Amounts are how much of each resource, in thousandths for cpu, else in units.
type Amounts map[corev1.ResourceName]int64

func (a Amounts) add(b Amounts, times int64) {
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
		exclusive:   wantsHostPort(pod) || repelsItself(pod),
		hcas:        HCAs(pod, ignored...),
	}
	if selector != nil && c.Amounts[selector.Resource] > 0 {
		c.selector = selector
	}
	var required *corev1.NodeSelector
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	// Maps are marshaled sorted, so equal pods give equal text. Nothing in it
	// can fail to marshal.
	text, _ := json.Marshal(struct {
		Amounts     Amounts              `json:"amounts"`
		Selector    map[string]string    `json:"selector"`
		Affinity    *corev1.NodeSelector `json:"affinity"`
		Tolerations []corev1.Toleration  `json:"tolerations"`
		NodeName    string               `json:"nodeName"`
		Exclusive   bool                 `json:"exclusive"`
		GPUs        string               `json:"gpus"`
		HCAs        Amounts              `json:"hcas"`
	}{c.Amounts, pod.Spec.NodeSelector, required, c.tolerations, c.nodeName, c.exclusive, c.selector.String(), c.hcas})
	c.Key = sha256.Sum256(text)
	return c
}

// Requests are what a pod asks for, without zeros.
func Requests(pod *corev1.Pod, ignored ...corev1.ResourceName) Amounts {
	amounts := Amounts{}
	for name, quantity := range resource.PodRequests(pod, resource.PodResourcesOptions{}) {
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
	what, _ := c.obstacle(node)
	return what == ""
}

// Obstacle is why a node takes no such pods, however much is free; empty if it does.
func (c *Class) Obstacle(node *corev1.Node) string {
	switch what, taint := c.obstacle(node); {
	case taint != nil:
		return c.repelling(node)
	case what == lacksHCAs:
		name := LacksHCAs(node, c.hcas)
		return fmt.Sprintf("%s: fewer HCAs than a container asks for", name)
	default:
		return what
	}
}

// repelling are the taints that the pods do not tolerate.
func (c *Class) repelling(node *corev1.Node) string {
	var all []string
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if forbids(t) && !schedulehelpers.TolerationsTolerateTaint(logr.Discard(), c.tolerations, t, false) {
			all = append(all, t.ToString())
		}
	}
	if len(all) == 1 {
		return "taint " + all[0]
	}
	return "taints " + strings.Join(all, ", ")
}

const lacksHCAs = "HCAs"

// obstacle is what keeps such pods off a node, and the taint if it is one. It makes
// no text, since it is asked for every node.
func (c *Class) obstacle(node *corev1.Node) (what string, taint *corev1.Taint) {
	if node == nil || c.nodeName != "" && c.nodeName != node.Name {
		return "the pod names another node", nil
	}
	if !ready(node) {
		return "not Ready", nil
	}
	if node.Spec.Unschedulable && !schedulehelpers.TolerationsTolerateTaint(logr.Discard(), c.tolerations, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}, false) {
		return "cordoned", nil
	}
	if t, repels := schedulehelpers.FindMatchingUntoleratedTaint(
		logr.Discard(), node.Spec.Taints, c.tolerations, forbids, false,
	); repels {
		return "taint", &t
	}
	if LacksHCAs(node, c.hcas) != "" {
		return lacksHCAs, nil
	}
	if match, err := c.affinity.Match(node); !match || err != nil {
		return "node selector or affinity", nil
	}
	return "", nil
}

// forbids leaves out PreferNoSchedule.
func forbids(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// ready is true without a Ready condition. The taint for a node that is not
// ready comes later than the condition.
func ready(node *corev1.Node) bool {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

func wantsHostPort(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if slices.ContainsFunc(list[i].Ports, func(p corev1.ContainerPort) bool { return p.HostPort > 0 }) {
				return true
			}
		}
	}
	return false
}

// Spreads reports whether a node counts for a topologySpreadConstraint of such pods: one
// that the pods' affinity selects, and if the constraint honors taints, that they tolerate.
func (c *Class) Spreads(node *corev1.Node, constraint *corev1.TopologySpreadConstraint) bool {
	if p := constraint.NodeAffinityPolicy; p == nil || *p == corev1.NodeInclusionPolicyHonor {
		if match, err := c.affinity.Match(node); !match || err != nil {
			return false
		}
	}
	if p := constraint.NodeTaintsPolicy; p != nil && *p == corev1.NodeInclusionPolicyHonor {
		_, repels := schedulehelpers.FindMatchingUntoleratedTaint(
			logr.Discard(), node.Spec.Taints, c.tolerations, forbids, false)
		return !repels
	}
	return true
}

// repelsItself reports whether required anti-affinity keeps two such pods off one
// host.
func repelsItself(pod *corev1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return slices.Contains(selfMatching(pod, terms), corev1.LabelHostname)
}

// Together is the label of which pods of one kind must have the same value, by required
// affinity to each other; empty if there is none.
func Together(pod *corev1.Pod) string {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAffinity == nil {
		return ""
	}
	keys := selfMatching(pod, pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	return append(keys, "")[0]
}

// selfMatching are the topology keys of the terms that match the pod itself.
func selfMatching(pod *corev1.Pod, terms []corev1.PodAffinityTerm) (keys []string) {
	for _, term := range terms {
		own := slices.Contains(term.Namespaces, pod.Namespace) || len(term.Namespaces) == 0 && term.NamespaceSelector == nil
		if s := term.NamespaceSelector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			own = true // All namespaces.
		}
		selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		if own && err == nil && selector.Matches(labels.Set(pod.Labels)) {
			keys = append(keys, term.TopologyKey)
		}
	}
	return keys
}
