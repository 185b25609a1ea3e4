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
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// limit is a hard constraint of members on each other by the values of a node label: a
// topologySpreadConstraint with DoNotSchedule, or a required anti-affinity.
type limit struct {
	// AffinityTerm selects the pods that count, and has the label of nodes.
	framework.AffinityTerm
	// spread is nil for anti-affinity, which allows one of the pods in a domain.
	spread *corev1.TopologySpreadConstraint
	// domain is the domain of each node, -1 for none. By domain, counts has how many pods the
	// selector matches, holders how many pods have the term themselves, and counted whether
	// the domain counts for the skew.
	domain          []int
	counts, holders []int
	counted         []bool
	// least is the count of the emptiest domain, unless it is stale.
	least int
	stale bool
}

// limits has the limits of a gang.
type limits struct {
	all []*limit
	// of are the limits of each member, and matched those that select it.
	of, matched [][]*limit
	// order is the order in which the scheduler tries the members.
	order []int
	// added are members that a plan has placed, with their nodes.
	added [][2]int
}

// limitsOf returns nil if the members have no limits that a plan could break: [fit.Class] knows
// those that keep two members off one host.
func limitsOf(g *Gang, q *fit.Query, tried types.UID) *limits {
	l := &limits{of: make([][]*limit, len(g.Members)), matched: make([][]*limit, len(g.Members))}
	known, beyond := map[string]*limit{}, false
	for i := range g.Members {
		m := &g.Members[i]
		if l.order = append(l.order, i); m.Pod.UID == tried {
			copy(l.order[1:], l.order)
			l.order[0] = i
		}
		for _, c := range constraintsOf(m.Pod) {
			// Text of API types that were read from JSON.
			key, _ := json.Marshal([]any{m.Pod.Namespace, m.Class.Key, c})
			if known[string(key)] == nil {
				terms, err := framework.GetAffinityTerms(m.Pod, []corev1.PodAffinityTerm{c.Term})
				if err != nil {
					continue // The API server rejects it.
				}
				made := &limit{AffinityTerm: terms[0], spread: c.Spread}
				made.domains(m.Class, q.Nodes)
				known[string(key)], l.all = made, append(l.all, made)
			}
			l.of[i] = append(l.of[i], known[string(key)])
			beyond = beyond || c.Spread != nil || c.Term.TopologyKey != corev1.LabelHostname
		}
	}
	if !beyond {
		return nil
	}
	for i := range g.Members {
		for _, made := range l.all {
			if made.matches(g.Members[i].Pod) {
				l.matched[i] = append(l.matched[i], made)
			}
		}
	}
	l.count(q.Nodes, q.Gone)
	return l
}

// constraint is a hard constraint of a pod: a topologySpreadConstraint with the term that
// selects what it counts, or a term of anti-affinity.
type constraint struct {
	Term   corev1.PodAffinityTerm
	Spread *corev1.TopologySpreadConstraint
}

func constraintsOf(pod *corev1.Pod) (all []constraint) {
	for i := range pod.Spec.TopologySpreadConstraints {
		if c := &pod.Spec.TopologySpreadConstraints[i]; c.WhenUnsatisfiable == corev1.DoNotSchedule {
			term := corev1.PodAffinityTerm{TopologyKey: c.TopologyKey, LabelSelector: selecting(c, pod)}
			all = append(all, constraint{term, c})
		}
	}
	for _, term := range framework.GetPodAntiAffinityTerms(pod.Spec.Affinity) {
		if term.NamespaceSelector != nil {
			term.NamespaceSelector = &metav1.LabelSelector{} // All: labels of namespaces are not known here.
		}
		all = append(all, constraint{Term: term})
	}
	return all
}

// selecting returns a constraint's selector with its matchLabelKeys.
func selecting(c *corev1.TopologySpreadConstraint, pod *corev1.Pod) *metav1.LabelSelector {
	selector := c.LabelSelector
	for _, key := range c.MatchLabelKeys {
		if value, ok := pod.Labels[key]; ok && selector != nil {
			selector = metav1.CloneSelectorAndAddLabel(selector, key, value)
		}
	}
	return selector
}

func (l *limit) matches(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && l.Matches(pod, nil)
}

// domains finds the domain of each node.
func (l *limit) domains(class *fit.Class, nodes []*fit.Node) {
	known := map[string]int{}
	l.domain = make([]int, len(nodes))
	for at, node := range nodes {
		value, ok := node.Labels[l.TopologyKey]
		if l.domain[at] = -1; !ok {
			continue
		}
		d, ok := known[value]
		if !ok {
			d = len(known)
			known[value] = d
			l.counted = append(l.counted, false)
		}
		l.domain[at] = d
		l.counted[d] = l.counted[d] || l.spread == nil || class.Spreads(node.Node, l.spread)
	}
	l.counts, l.holders, l.stale = make([]int, len(known)), make([]int, len(known)), true
}

// count counts the pods on the nodes, including members.
func (l *limits) count(nodes []*fit.Node, gone map[string]fit.Gone) {
	for at, node := range nodes {
		left := gone[node.Name].UIDs
		for _, pod := range node.Pods {
			if left[pod.UID] {
				continue
			}
			for _, made := range l.all {
				if d := made.domain[at]; d >= 0 && made.matches(pod) {
					made.counts[d]++
				}
			}
		}
	}
}

// allow reports whether a member may go to a node beside the pods there and the members that
// were added. kube-scheduler's filters check the anti-affinity of other pods.
func (l *limits) allow(member, at int) bool {
	for _, made := range l.of[member] {
		switch d := made.domain[at]; {
		case made.spread == nil && (d < 0 || made.counts[d] == 0):
		case made.spread == nil, d < 0, made.counts[d]+l.self(member, made)-made.floor() > int(made.spread.MaxSkew):
			return false
		}
	}
	for _, made := range l.matched[member] {
		if d := made.domain[at]; made.spread == nil && d >= 0 && made.holders[d] > 0 {
			return false
		}
	}
	return true
}

func (l *limits) self(member int, of *limit) int {
	if slices.Contains(l.matched[member], of) {
		return 1
	}
	return 0
}

// floor returns the count of the emptiest domain; zero with fewer domains than minDomains.
func (l *limit) floor() int {
	if !l.stale {
		return l.least
	}
	least, domains := math.MaxInt, 0
	for d, counts := range l.counted {
		if counts {
			least, domains = min(least, l.counts[d]), domains+1
		}
	}
	if domains == 0 || l.spread.MinDomains != nil && domains < int(*l.spread.MinDomains) {
		least = 0
	}
	l.least, l.stale = least, false
	return least
}

// add places a member on a node; undo removes all members again.
func (l *limits) add(member, at int) {
	l.added = append(l.added, [2]int{member, at})
	l.change(member, at, 1)
}

func (l *limits) undo() {
	for _, a := range l.added {
		l.change(a[0], a[1], -1)
	}
	l.added = nil
}

func (l *limits) change(member, at, by int) {
	for _, made := range l.matched[member] {
		if d := made.domain[at]; d >= 0 {
			made.counts[d] += by
			made.stale = true
		}
	}
	for _, made := range l.of[member] {
		if d := made.domain[at]; d >= 0 && made.spread == nil {
			made.holders[d] += by
		}
	}
}

// keeps reports whether a plan respects all limits, one member after another.
func (l *limits) keeps(t *tree, g *Gang, found []int32) bool {
	defer l.undo()
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
