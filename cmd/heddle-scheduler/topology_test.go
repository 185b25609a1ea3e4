package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// master is a topo-master that answers what the test sets.
type master struct {
	mu     sync.Mutex
	answer string
	tag    int
	// domains are NVLink domains that cross the groups of the answer.
	domains string
	// confirmed counts requests of a client that has the tree already.
	confirmed int
	// maxAge is the scheduler's; after that long a tree may be too old for a slow machine too.
	maxAge string
}

// await waits until the scheduler has the tree.
func (m *master) await() {
	m.mu.Lock()
	before := m.confirmed
	m.mu.Unlock()
	for now := before; now < before+1; <-time.After(10 * time.Millisecond) {
		m.mu.Lock()
		now = m.confirmed
		m.mu.Unlock()
	}
}

func (m *master) set(answer string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = answer
	m.tag++
}

func (m *master) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	tag := fmt.Sprintf(`"%d"`, m.tag)
	if m.domains != "" {
		w.Header().Set(v1alpha1.CrossingHeader, tag)
	}
	switch {
	case r.URL.Query().Get("axis") == "nvlink":
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(m.domains))
	case m.answer == "":
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.Header.Get("If-None-Match") == tag:
		m.confirmed++
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("ETag", tag)
		_, _ = w.Write([]byte(m.answer))
	}
}

// leaves is a tree of leaves with so many nodes each; nodes are named in their
// order.
func leaves(size int, names ...string) string {
	var groups []string
	for i := 0; i < len(names); i += size {
		var nodes []string
		for _, name := range names[i:min(i+size, len(names))] {
			nodes = append(nodes, fmt.Sprintf(`{"name":%q,"kind":"node","status":"Ready"}`, name))
		}
		groups = append(groups, fmt.Sprintf(`{"name":"leaf-%02d","kind":"leaf","child":[%s],"status":"Ready"}`, i/size, strings.Join(nodes, ",")))
	}
	return "[" + strings.Join(groups, ",") + "]"
}

func withMaster(t *testing.T, m *master, more string) string {
	t.Helper()
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	return fmt.Sprintf(`{"topoMaster": %q, "interval": "50ms", "maxAge": %q %s}`, server.URL+"/node_group", cmp.Or(m.maxAge, "1h"), more)
}

func groupOf(pods map[string]*corev1.Pod, prefix string, at map[string]string) map[string]int {
	in := map[string]int{}
	for name, p := range pods {
		if strings.HasPrefix(name, prefix) {
			in[at[p.Spec.NodeName]]++
		}
	}
	return in
}

func TestGangsFollowTheTopologyTree(t *testing.T) {
	m := &master{}
	names := []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"}
	at := map[string]string{}
	var nodes []*corev1.Node
	for i, name := range names {
		nodes = append(nodes, node(name, 4))
		at[name] = fmt.Sprintf("leaf-%02d", i/2)
	}
	m.set(leaves(2, names...))
	w := start(t, withMaster(t, m, ""), nodes...)
	m.await()
	w.gang("x", 8, 1, 8)
	pods := w.whole("x", 8)
	if in := groupOf(pods, "x", at); len(in) != 1 {
		t.Errorf("x is in %v", in)
	}
	// Slices of 8 GPUs: each block of four ranks of two GPUs in one leaf.
	for i := range 12 {
		p := pod(fmt.Sprintf("y-%d", i), 2, gangLabels("y", 12))
		p.Annotations = map[string]string{"nvidia.com/gpu-group-size": "8"}
		w.add(p)
	}
	pods = w.whole("y", 12)
	for block := range 3 {
		in := map[string]bool{}
		for i := range 4 {
			in[at[pods[fmt.Sprintf("y-%d", block*4+i)].Spec.NodeName]] = true
		}
		if len(in) != 1 {
			t.Errorf("slice %d is in %v", block, in)
		}
	}
}

func TestNewTreeActivatesGangs(t *testing.T) {
	m := &master{maxAge: "1s"}
	w := start(t, withMaster(t, m, `, "withoutMap": "wait"`), node("a", 4), node("b", 4), node("c", 4))
	for i := range 2 {
		p := pod(fmt.Sprintf("x-%d", i), 4, gangLabels("x", 2))
		p.Annotations = map[string]string{"heddle.dev/gang-required-level": "leaf"}
		w.add(p)
	}
	w.until("waits for a topology tree", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["x-0"]), "waits for a topology tree") && strings.Contains(why(pods["x-1"]), "waits for a topology tree")
	})
	m.set(leaves(1, "a", "b", "c"))
	w.until("the condition names what the tree lacks", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["x-0"]), "1 of 2 fit") || strings.Contains(why(pods["x-1"]), "1 of 2 fit")
	})
	m.set(leaves(2, "b", "c", "a"))
	pods := w.whole("x", 2)
	for _, p := range pods {
		if p.Spec.NodeName == "a" {
			t.Error("a pod is outside the leaf")
		}
	}
	// The tree grows too old: gangs that may, go without it.
	m.set("")
	p := pod("y-0", 4, gangLabels("y", 1))
	p.Annotations = map[string]string{"heddle.dev/gang-required-level": "leaf", "heddle.dev/gang-without-map": "place"}
	<-time.After(1500 * time.Millisecond)
	w.add(p)
	w.until("y bound without the map", func(pods map[string]*corev1.Pod) bool { return pods["y-0"].Spec.NodeName == "a" })
}

// A nomination is tried whatever PreFilter returns: Filter must reject it.
func TestNominationDoesNotBypassThePlan(t *testing.T) {
	w := start(t, args(""), node("n0", 4), node("n1", 4), node("n2", 4))
	for i := range 3 {
		p := pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 3))
		p.Status.NominatedNodeName = fmt.Sprintf("n%d", i)
		w.add(p)
	}
	pods := w.whole("x", 3)
	on := map[string]int{}
	for _, p := range pods {
		on[p.Spec.NodeName]++
	}
	if len(on) != 1 {
		t.Errorf("the gang is on %v", on)
	}
}
