package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// leaf is a group of nodes, by number.
func leaf(name string, nodes ...int) v1alpha1.Group {
	g := v1alpha1.Group{Kind: "leaf", Name: name, Status: v1alpha1.StatusReady}
	for _, n := range nodes {
		g.Child = append(g.Child, v1alpha1.Group{Kind: v1alpha1.KindNode, Name: fmt.Sprint("n", n), Status: v1alpha1.StatusReady})
	}
	return g
}

// All members go to nodes with one value of the label, the tightest place of those.
func TestPlaceByLabel(t *testing.T) {
	nodes, err := placement.New([]v1alpha1.Group{leaf("leaf-0", 0, 1, 2), leaf("leaf-1", 3, 4, 5), leaf("leaf-2", 6)})
	if err != nil {
		t.Fatal(err)
	}
	zones := []string{"a", "a", "b", "b", "b", "b", ""}
	for _, tt := range []struct {
		name   string
		pods   int
		placed []placement.Member
		avoid  []int32
		want   string
		err    string
	}{
		{name: "a leaf of one zone", pods: 3, want: "3 4 5"},
		{name: "part of a leaf of two zones", pods: 2, want: "0 1"},
		{name: "two leaves", pods: 4, want: "2 3 4 5"},
		{name: "in no zone", pods: 5, err: "4 of 5 fit"},
		{name: "around a node", pods: 3, avoid: []int32{5}, want: "2 3 4"},
		{name: "beside a member", pods: 2, placed: []placement.Member{{Rank: 0, Node: 2}}, want: "2 3"},
		{name: "beside a member of no zone", pods: 2, placed: []placement.Member{{Rank: 0, Node: 6}}, err: "a member is on node n6, which has no label zone"},
		{name: "members in two zones", pods: 3, placed: []placement.Member{{Rank: 0, Node: 0}, {Rank: 1, Node: 3}}, err: "its members are in a, b of zone already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := placement.Gang{Tasks: []placement.Task{{Pods: tt.pods}}, Placed: tt.placed, Avoid: tt.avoid}
			room := placement.Capacity{Fit: [][]int32{{1, 1, 1, 1, 1, 1, 1}}}
			for _, m := range tt.placed {
				room.Fit[0][m.Node] = 0
			}
			s := search{tree: &tree{placement: nodes}, gang: &g, label: "zone", values: zones}
			plan, err := s.place(&room)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, strings.Trim(fmt.Sprint(plan.Nodes), "[]")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A node may have the name of a group above it, and a hostname label that is not its name.
func TestNamesOfSeveralThings(t *testing.T) {
	spine := v1alpha1.Group{Kind: "spine", Name: "n1", Status: v1alpha1.StatusReady, Child: []v1alpha1.Group{leaf("n0", 0, 1), leaf("n2", 2, 3)}}
	members := func(pods int) *Request {
		r := newHunt(t, nil).request(pods, 8)
		r.Gangs[0].MinMember = pods
		return r
	}
	for _, tt := range []struct {
		name string
		full []int // GPUs in use of each node.
		want func(*Request)
		pods int
		on   string
	}{
		{"the node n1 of a leaf n0", []int{8, 0, 8, 8}, nil, 1, "n1"},
		{"the leaf n2", []int{8, 8, 0, 0}, nil, 2, "n2 n3"},
		{"the spine n1", []int{0, 0, 0, 0}, nil, 4, "n0 n1 n2 n3"},
		{"the label n0 of node n3", []int{0, 0, 0, 0}, func(r *Request) {
			for i, n := range r.Nodes {
				n.Labels[corev1.LabelHostname] = fmt.Sprint("n", (i+1)%4)
			}
			m := &r.Gangs[0].Members[0]
			m.Pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n0"}
			m.Class = ClassOf(m.Pod, nil)
		}, 1, "n3"},
	} {
		r := members(tt.pods)
		r.Nodes = zoned(make([]string, 4), tt.full)
		if tt.want != nil {
			tt.want(r)
		}
		plan := New(topologyclient.Of([]v1alpha1.Group{spine}), gang.Place, sgpu.GPUs{gpu}).Plan(r)
		if plan.Reason != "" {
			t.Errorf("%s: %s", tt.name, plan.Reason)
			continue
		}
		if got := strings.Join(slices.Sorted(slices.Values(plan.Places[0].Nodes)), " "); got != tt.on {
			t.Errorf("%s: on %s, want %s", tt.name, got, tt.on)
		}
	}
}
