package planner

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// named is a NodeInfo of which only the name is read.
type named struct {
	framework.NodeInfo
	name string
}

func (n named) Node() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}} }

// branch is a group of groups; a number is a node.
func branch(kind, name string, child ...v1alpha1.Group) v1alpha1.Group {
	return v1alpha1.Group{Kind: kind, Name: name, Child: child, Status: v1alpha1.StatusReady}
}

func leaf(name string, nodes ...int) v1alpha1.Group {
	g := branch("leaf", name)
	for _, n := range nodes {
		g.Child = append(g.Child, branch(v1alpha1.KindNode, fmt.Sprint("n", n)))
	}
	return g
}

// newPlanner is one that has a topology tree.
func newPlanner(t *testing.T, groups []v1alpha1.Group) *Planner {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(groups)
	}))
	t.Cleanup(server.Close)
	log := slog.New(slog.DiscardHandler)
	client := topologyclient.New(topologyclient.Options{URL: server.URL, Log: log})
	_, changed := client.Current()
	go client.Run(t.Context())
	<-changed
	return New(client, gang.Wait, "nvidia.com/gpu", log)
}

// The list of a PodGroup begins with the tightest group of its plan, and goes up
// tier by tier; a tier with the same nodes is no other placement.
func TestPlacements(t *testing.T) {
	groups := []v1alpha1.Group{
		branch("pod", "pod-1",
			branch("spine", "spine-1", leaf("leaf-1", 0, 1), leaf("leaf-2", 2, 3)),
			branch("spine", "spine-2", leaf("leaf-3", 4, 5))),
		branch("pod", "pod-2", branch("spine", "spine-3", leaf("leaf-4", 6))),
	}
	var nodes []framework.NodeInfo
	for i := range 8 { // n7 is in no group, and n5 is not the scheduler's.
		if i != 5 {
			nodes = append(nodes, named{name: fmt.Sprint("n", i)})
		}
	}
	p := newPlanner(t, groups)
	p.update(t.Context(), nodes)
	tree := &p.tree
	const all = "n0 n1 n2 n3 n4 n6 n7"
	for _, tt := range []struct {
		name string
		gang placement.Gang
		want []string
	}{
		{"a node", placement.Gang{Tasks: []placement.Task{{Pods: 1}}}, []string{
			"n6: n6", "all nodes (1): " + all, "all nodes (2): " + all, "all nodes (3): " + all,
		}},
		{"a leaf", placement.Gang{Tasks: []placement.Task{{Pods: 2}}}, []string{
			"leaf-1: n0 n1", "spine-1: n0 n1 n2 n3", "pod-1: n0 n1 n2 n3 n4", "all nodes (1): " + all,
		}},
		{"a spine", placement.Gang{Tasks: []placement.Task{{Pods: 4}}}, []string{
			"spine-1: n0 n1 n2 n3", "pod-1: n0 n1 n2 n3 n4", "all nodes (1): " + all, "all nodes (2): " + all,
		}},
		{"everything", placement.Gang{Tasks: []placement.Task{{Pods: 7}}}, []string{
			"all nodes (1): " + all, "all nodes (2): " + all, "all nodes (3): " + all, "all nodes (4): " + all,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			room := placement.Capacity{Fit: [][]int32{make([]int32, tree.placement.Len())}}
			for id := range room.Fit[0] {
				if tree.at[id] >= 0 {
					room.Fit[0][id] = 1
				}
			}
			plan, err := placement.Place(tree.placement, &tt.gang, &room)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, place := range p.Placements(&Plan{found: plan}, nodes, 4) {
				line := place.Name + ":"
				for _, n := range place.Nodes {
					line += " " + n.Node().Name
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
