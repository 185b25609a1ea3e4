package planner

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/placement"
)

// limit is a hard constraint of members on each other by the values of a node label: a
// topologySpreadConstraint with DoNotSchedule, or a required anti-affinity.
type limit struct {
	// AffinityTerm selects the pods that count, and has the label of nodes.
	framework.AffinityTerm
	// spread is nil for anti-affinity, which allows one of the pods in a domain.
	spread *corev1.TopologySpreadConstraint
	// has are the members with the limit, selected those that count for it.
	has, selected []bool
	// domain is the domain of each node, -1 for none. By domain, running has how many pods the
	// selector matches, counts the same with the members that a plan adds, holders how many of
	// these have the limit, and counted whether the domain counts for the skew.
	domain                   []int
	running, counts, holders []int
	counted                  []bool
	// least is the count of the emptiest domain; zero with fewer domains than minDomains.
	least int
}

// limits has the limits of a gang, and the order in which the scheduler tries its members.
type limits struct {
	all   []*limit
	order []int
}

// limitsOf returns nil if the members have no limits.
func limitsOf(g *Gang, q *Query, tried types.UID) *limits {
	l, known := &limits{}, map[string]*limit{}
	shared := slices.ContainsFunc(g.Members, func(m Member) bool { return m.Class.exclusive }) && sharedHostnames(q.Nodes)
	for i := range g.Members {
		m := &g.Members[i]
		if l.order = append(l.order, i); m.Pod.UID == tried {
			copy(l.order[1:], l.order)
			l.order[0] = i
		}
		for _, c := range constraintsOf(m.Pod, shared) {
			// Text of API types that were read from JSON.
			key, _ := json.Marshal([]any{m.Pod.Namespace, m.Class.Key, c})
			if known[string(key)] == nil {
				terms, err := framework.GetAffinityTerms(m.Pod, []corev1.PodAffinityTerm{c.Term})
				if err != nil {
					continue // The API server rejects it.
				}
				made := &limit{AffinityTerm: terms[0], spread: c.Spread, has: make([]bool, len(g.Members))}
				made.count(m.Class, q)
				known[string(key)], l.all = made, append(l.all, made)
			}
			known[string(key)].has[i] = true
		}
	}
	if len(l.all) == 0 {
		return nil
	}
	for _, made := range l.all {
		for i := range g.Members {
			made.selected = append(made.selected, made.matches(g.Members[i].Pod))
		}
	}
	l.reset()
	return l
}

// constraint is a hard constraint of a pod: a topologySpreadConstraint with the term that
// selects what it counts, or a term of anti-affinity.
type constraint struct {
	Term   corev1.PodAffinityTerm
	Spread *corev1.TopologySpreadConstraint
}

// sharedHostnames reports whether two nodes have one label kubernetes.io/hostname, as when a kubelet was told the name
// of another.
func sharedHostnames(nodes []*Node) bool {
	seen := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		name, ok := node.Labels[corev1.LabelHostname]
		if ok && seen[name] {
			return true
		}
		seen[name] = true
	}
	return false
}

func constraintsOf(pod *corev1.Pod, sharedHostnames bool) (all []constraint) {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		selector := c.LabelSelector
		for _, key := range c.MatchLabelKeys {
			if value, ok := pod.Labels[key]; ok && selector != nil {
				selector = metav1.CloneSelectorAndAddLabel(selector, key, value)
			}
		}
		all = append(all, constraint{corev1.PodAffinityTerm{TopologyKey: c.TopologyKey, LabelSelector: selector}, c})
	}
	for _, term := range framework.GetPodAntiAffinityTerms(pod.Spec.Affinity) {
		if term.TopologyKey == corev1.LabelHostname && !sharedHostnames {
			continue // [Class] knows that two members never share a node.
		}
		if term.NamespaceSelector != nil {
			term.NamespaceSelector = &metav1.LabelSelector{} // All: labels of namespaces are not known here.
		}
		all = append(all, constraint{Term: term})
	}
	return all
}

func (l *limit) matches(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && l.Matches(pod, nil)
}

// count finds the domain of each node, and counts the pods on the nodes, including members.
func (l *limit) count(class *Class, q *Query) {
	known := map[string]int{}
	for _, node := range q.Nodes {
		value, ok := node.Labels[l.TopologyKey]
		if !ok {
			l.domain = append(l.domain, -1)
			continue
		}
		d, ok := known[value]
		if !ok {
			d = len(known)
			known[value] = d
			l.running, l.counted = append(l.running, 0), append(l.counted, false)
		}
		l.domain = append(l.domain, d)
		l.counted[d] = l.counted[d] || l.spread != nil && class.Spreads(node.Node, l.spread)
		gone := q.Gone[node.Name].UIDs
		for _, pod := range node.Pods {
			if !gone[pod.UID] && l.matches(pod) {
				l.running[d]++
			}
		}
	}
}

// reset begins without the members that a plan has added.
func (l *limits) reset() {
	for _, made := range l.all {
		made.counts, made.holders = slices.Clone(made.running), make([]int, len(made.running))
		made.floor()
	}
}

// floor finds the count of the emptiest domain.
func (l *limit) floor() {
	least, domains := math.MaxInt, 0
	for d, counts := range l.counted {
		if counts {
			least, domains = min(least, l.counts[d]), domains+1
		}
	}
	if l.least = least; domains == 0 || l.spread.MinDomains != nil && domains < int(*l.spread.MinDomains) {
		l.least = 0
	}
}

// allow reports whether a member may go to a node beside the pods there and the members that
// were added. kube-scheduler's filters check the anti-affinity of other pods.
func (l *limits) allow(member, at int) bool {
	for _, made := range l.all {
		d, has, selected := made.domain[at], made.has[member], made.selected[member]
		if made.spread == nil {
			if d >= 0 && (has && made.counts[d] > 0 || selected && made.holders[d] > 0) {
				return false
			}
			continue
		}
		most := made.least + int(made.spread.MaxSkew)
		if selected {
			most--
		}
		if has && (d < 0 || made.counts[d] > most) {
			return false
		}
	}
	return true
}

// add places a member on a node.
func (l *limits) add(member, at int) {
	for _, made := range l.all {
		d := made.domain[at]
		if d < 0 {
			continue
		}
		if made.selected[member] {
			made.counts[d]++
			made.floor()
		}
		if made.has[member] {
			made.holders[d]++
		}
	}
}

// keeps reports whether a plan respects all limits, one member after another.
func (l *limits) keeps(t *tree, g *Gang, found []int32) bool {
	for _, i := range l.order {
		if g.Members[i].Node != "" || found[i] == placement.None {
			continue
		}
		at := int(t.at[found[i]])
		if !l.allow(i, at) {
			return false
		}
		l.add(i, at)
	}
	return true
}

// keys returns the labels of the limits.
func (l *limits) keys() string {
	var all []string
	for _, made := range l.all {
		all = append(all, made.TopologyKey)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " and ")
}
