// Package suspect remembers where gangs failed, and names the nodes and groups that they had in common.
//
// It owns the rules of evidence: which failures count, against which nodes, for how long, and what clears a node. A
// [Memory] is fed from watches of pods and Nodes, by heddle-scheduler and by topo-master alike, and builds itself
// up again from the pods that the API server still has. It watches nothing and writes nothing.
package suspect

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Pod is a member of a gang on a node. The zero time is unknown.
type Pod struct {
	UID        types.UID
	Gang, Node string
	Start, End time.Time
	// Failure explains why the pod failed; empty if it did not, or was evicted.
	Failure string
}

// PodOf reads a pod of a gang, whose name is "namespace/name".
func PodOf(pod *corev1.Pod, gang string) Pod {
	p := Pod{UID: pod.UID, Gang: gang, Node: pod.Spec.NodeName}
	if pod.Status.StartTime != nil {
		p.Start = pod.Status.StartTime.Time
	}
	if pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
		return p
	}
	p.End = p.Start
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil {
			if t.FinishedAt.After(p.End) {
				p.End = t.FinishedAt.Time
			}
			// A container that exceeds its memory fails on any node.
			if t.ExitCode != 0 && t.Reason != "OOMKilled" && p.Failure == "" {
				p.Failure = fmt.Sprintf("exit code %d", t.ExitCode)
			}
		}
	}
	evicted := func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget }
	// Containers that are told to end may say anything. The kubelet's reasons are evictions, deadlines and rejections.
	if pod.Status.Phase == corev1.PodSucceeded || pod.DeletionTimestamp != nil || pod.Status.Reason != "" ||
		slices.ContainsFunc(pod.Status.Conditions, evicted) {
		p.Failure = ""
	}
	return p
}

// Fault is a fault of a node, as its conditions show.
type Fault struct {
	Since  time.Time
	Reason string
	// Cables is true for cables, with which gangs run, but slower.
	Cables bool
}

// FaultsOf returns what is wrong with a Node now.
func FaultsOf(node *corev1.Node) (out []Fault) {
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		switch {
		case c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue:
			out = append(out, Fault{Since: c.LastTransitionTime.Time, Reason: "node not ready"})
		case c.Type == wellknown.ConditionDevices && c.Status == corev1.ConditionFalse,
			c.Type == wellknown.ConditionFabric && c.Status == corev1.ConditionFalse:
			out = append(out, Fault{c.LastTransitionTime.Time, c.Message, c.Type == wellknown.ConditionFabric})
		}
	}
	return out
}

const (
	// window is how long a failure is remembered, halfLife the age at which it counts half.
	window, halfLife = 72 * time.Hour, 48 * time.Hour
	// provenAfter is how long a gang must run to show that its code and its nodes work.
	provenAfter = time.Hour
	// faultNear is the time between a node's fault and the failure that it explains.
	faultNear = 10 * time.Minute
	// settle is the time in which the other members of a gang fail with the first.
	settle = 10 * time.Minute
	// maxFailures is how many failures of a gang that starts again and again are remembered.
	maxFailures = 10
	// judgeEvery is the time between two looks at the evidence if nothing fails: running gangs clear nodes.
	judgeEvery = time.Minute
)

// Memory is safe for concurrent use.
type Memory struct {
	mu     sync.Mutex
	pods   map[types.UID]*Pod
	gangs  map[string][]*Pod
	faults map[string][]Fault
	// cables has the nodes whose cables are bad now, tested whether each node's cables were measured, and measured
	// how many were.
	cables, tested map[string]bool
	measured       int
	// groups has the lowest group of each node.
	groups map[string]string
	// places has what is suspect at the time judged, the most suspect first, and own the nodes of each gang's failures,
	// the last first; stale reports that they lack something.
	places []Place
	own    map[string][]string
	judged time.Time
	stale  bool
}

// NewMemory returns a memory of nothing.
func NewMemory() *Memory {
	return &Memory{
		pods: map[types.UID]*Pod{}, gangs: map[string][]*Pod{}, faults: map[string][]Fault{}, cables: map[string]bool{},
		tested: map[string]bool{},
	}
}

// See takes the state of a pod over. A pod without a node or a start is not remembered.
func (m *Memory) See(p Pod) {
	if p.Node == "" || p.Start.IsZero() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.pods[p.UID]
	if before == nil {
		before = &Pod{}
		m.pods[p.UID], m.gangs[p.Gang] = before, append(m.gangs[p.Gang], before)
	}
	m.stale = m.stale || p.Failure != "" && before.Failure == ""
	p.Failure = cmp.Or(p.Failure, before.Failure) // A pod that failed is deleted then.
	if p.End.IsZero() {
		p.End = before.End // Two watches bring the news in any order.
	}
	*before = p
}

// Lose notes that a pod is gone: if it had not ended, it was deleted.
func (m *Memory) Lose(uid types.UID, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pods[uid]; p != nil && p.End.IsZero() {
		p.End = now
	}
}

// Ended reports whether any pod of a gang has ended within the last hour: the gang that is there now comes back.
func (m *Memory) Ended(gang string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.gangs[gang], func(p *Pod) bool { return !p.End.IsZero() && now.Sub(p.End) < time.Hour })
}

// Node takes the faults of a node over. Faults that end stay remembered.
func (m *Memory) Node(name string, faults []Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.cables, name)
	for _, f := range faults {
		if f.Cables {
			m.cables[name] = true
		}
		if !slices.Contains(m.faults[name], f) {
			m.faults[name], m.stale = append(m.faults[name], f), true
		}
	}
}

// Remove forgets the cables of a node that was removed. Failures on it stay remembered.
func (m *Memory) Remove(name string) {
	m.Tested(name, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.cables, name)
	delete(m.tested, name)
}

// Tested takes over whether a node's cables were measured.
func (m *Memory) Tested(name string, tested bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tested[name] {
		m.measured--
	}
	if m.tested[name] = tested; tested {
		m.measured++
	}
}

// Untested returns the nodes whose cables were not measured, none if that is true of all.
func (m *Memory) Untested() (nodes []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.measured == 0 {
		return nil
	}
	for name, tested := range m.tested {
		if !tested {
			nodes = append(nodes, name)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// Group takes over the lowest group of each node.
func (m *Memory) Group(tree []v1alpha1.Group) {
	groups := map[string]string{}
	for g := range v1alpha1.All(tree) {
		for i := range g.Child {
			if node := &g.Child[i]; node.Kind == v1alpha1.KindNode {
				groups[node.Name] = g.Name
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.groups, m.stale = groups, true
}

// forget drops what is too old.
func (m *Memory) forget(now time.Time) {
	old := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) > window }
	for gang := range m.gangs {
		m.drop(gang, func(p *Pod) bool { return old(p.End) })
	}
	for node := range m.faults {
		m.faults[node] = slices.DeleteFunc(m.faults[node], func(f Fault) bool { return old(f.Since) })
		if len(m.faults[node]) == 0 {
			delete(m.faults, node)
		}
	}
}

// drop forgets some pods of a gang.
func (m *Memory) drop(gang string, some func(*Pod) bool) {
	m.gangs[gang] = slices.DeleteFunc(m.gangs[gang], func(p *Pod) bool {
		gone := some(p)
		if gone {
			delete(m.pods, p.UID)
		}
		return gone
	})
	if len(m.gangs[gang]) == 0 {
		delete(m.gangs, gang)
	}
}
