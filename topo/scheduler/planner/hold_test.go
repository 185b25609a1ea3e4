package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// leavesOf are groups of two of the nodes n0, n1, ...
func leavesOf(nodes int) (groups []v1alpha1.Group) {
	for i := range nodes {
		if i%2 == 0 {
			groups = append(groups, v1alpha1.Group{Name: fmt.Sprint("leaf-", i/2), Kind: "leaf"})
		}
		g := &groups[len(groups)-1]
		g.Child = append(g.Child, v1alpha1.Group{Name: fmt.Sprint("n", i), Kind: v1alpha1.KindNode})
	}
	return groups
}

// Pods are as prey has them; those named service are always restarted, those with "-" terminate.
func TestHold(t *testing.T) {
	for _, tt := range []struct {
		name       string
		nodes      [][]string
		pods, gpus int
		level      string
		want       string
	}{
		{"idle nodes first, then the oldest", [][]string{{"a 8 0 3"}, {"b 8 0 9"}, {}, {"c 8 0 5"}}, 2, 8, "", "n1 n2"},
		{"of one pod each", [][]string{{"a 8 0 3"}, {"b 8 0 9"}, {"c 8 0 5"}}, 2, 8, "", "n1 n2"},
		{"of a higher priority too", [][]string{{"a 8 0 3"}, {"b 8 99 9"}}, 1, 8, "", "n1"},
		{"all pods of a node", [][]string{{"a 4 0 9", "b 4 0 2"}, {"c 4 0 8", "d 4 0 7"}}, 1, 8, "", "n1"},
		{"a gang, and as few idle nodes as possible", [][]string{{"g/a 8 0 9"}, {"g/b 8 0 9"}, {}, {}, {"c 8 0 1"}}, 3, 8, "", "n0 n1 n2"},
		{"a part of a node", [][]string{{"a 4 0 9", "b 4 0 2"}, {"c 4 0 8", "d 4 0 7"}}, 1, 4, "", "n0"},
		{"a service never ends", [][]string{{"service 8 0 99"}, {"b 8 0 1"}}, 1, 8, "", "n1"},
		{"unless it terminates", [][]string{{"-service 8 0 99"}, {"b 8 0 1"}}, 1, 8, "", "n0"},
		{"never, for services", [][]string{{"service 1 0 99"}, {}}, 2, 8, "", ""},
		{"never, for the nodes", [][]string{{"a 8 0 3"}, {"b 8 0 9"}}, 3, 8, "", ""},
		{"never, for the size of a node", [][]string{{}, {}}, 1, 9, "", ""},
		{"no devices", [][]string{{"a 8 0 3"}}, 1, 0, "", ""},
		{"a leaf", [][]string{{"a 8 0 9"}, {"b 8 0 1"}, {}, {"c 8 0 5"}}, 2, 8, "leaf", "n2 n3"},
		{"a leaf that a service is in", [][]string{{}, {"service 8 0 9"}, {"b 8 0 1"}, {"c 8 0 5"}}, 2, 8, "leaf", "n2 n3"},
		{"never, for the leaves", [][]string{{"a 8 0 9"}, {}, {}, {}}, 3, 8, "leaf", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHunt(t, tt.nodes)
			for _, n := range h.nodes {
				for _, p := range n.Pods {
					if p.Name == "service" {
						p.Spec.RestartPolicy = corev1.RestartPolicyAlways
					}
				}
			}
			r := h.request(tt.pods, tt.gpus)
			r.Gangs[0].Spec.Required = tt.level
			p := New(topologyclient.Of(leavesOf(len(tt.nodes))), gang.Place, sgpu.GPUs{gpu})
			held := p.Hold(r, h.cluster.GangOf, &Waiting{})
			if got := strings.Join(slices.Sorted(maps.Keys(held)), " "); got != tt.want {
				t.Errorf("%q is held, want %q", got, tt.want)
			}
		})
	}
}

// The gang's own members do not end before it has room.
func TestHoldKeepsMembers(t *testing.T) {
	h := newHunt(t, [][]string{{"own 8 10 9"}, {"a 8 0 1"}, {}})
	r := h.request(3, 8)
	r.Gangs[0].Members[0].Pod, r.Gangs[0].Members[0].Node = h.nodes[0].Pods[0], "n0"
	held := newPlanner().Hold(r, nil, &Waiting{})
	if got := strings.Join(slices.Sorted(maps.Keys(held)), " "); got != "n1 n2" {
		t.Errorf("%q is held", got)
	}
}

// A node that is kept takes pods without devices and pods of a higher priority, and the rest of its GPUs stays in use.
func TestHeldNode(t *testing.T) {
	h := newHunt(t, [][]string{{"a 4 0 3"}})
	r := h.request(1, 6)
	waiting := &Waiting{Gang: r.Gangs[0].Key, For: 12 * time.Hour}
	held := newPlanner().Hold(r, nil, waiting)
	for _, tt := range []struct {
		gpus     int
		priority int32
		want     bool
	}{{0, 10, true}, {1, 10, false}, {1, 0, false}, {4, 11, true}, {5, 11, false}} {
		q := Query{Nodes: h.nodes, Reservations: held, Priority: tt.priority}
		free := q.Free(h.nodes[0])
		if got := free.Count(ClassOf(requesting("new", tt.gpus), nil)) > 0; got != tt.want {
			t.Errorf("a pod of %d GPUs and priority %d: %v", tt.gpus, tt.priority, got)
		}
		if tt.priority <= 10 && free.Waiting.String() != "gang default/high, which has waited 12h" {
			t.Errorf("kept for %s", free.Waiting)
		}
	}
	all := maps.Clone(held)
	all["n0"] = append(slices.Clone(all["n0"]), Reservation{UID: types.UID("other"), Priority: 99, Amounts: Amounts{gpu: 1}})
	q := Query{Nodes: h.nodes, Reservations: all, Priority: 11}
	if free := q.Free(h.nodes[0]); free.Waiting != nil || free.Reserved(gpu) != 1 {
		t.Errorf("a plan's reservation: %v, %d", free.Waiting, free.Reserved(gpu))
	}
}
