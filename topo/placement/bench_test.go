package placement_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// cluster is a topology of nodes, 16 to a leaf and 16 leaves to a spine, half of
// them busy: each has room for none or one pod of 8 GPUs, or for up to 8 of
// one.
func cluster(nodes int) (groups []v1alpha1.Group, whole, shared []int32) {
	rng := rand.New(rand.NewPCG(7, 7))
	for n := 0; n < nodes; {
		spine := v1alpha1.Group{Name: fmt.Sprintf("spine-%04d", len(groups)), Kind: "spine"}
		for range min(16, (nodes-n+15)/16) {
			leaf := v1alpha1.Group{Name: fmt.Sprintf("leaf-%06d", n), Kind: "leaf"}
			busy := rng.Float64()
			for range min(16, nodes-n) {
				leaf.Child = append(leaf.Child, v1alpha1.Group{Name: fmt.Sprintf("node-%06d", n), Kind: v1alpha1.KindNode})
				free := int32(8)
				if rng.Float64() < busy {
					free = int32(rng.IntN(8))
				}
				whole, shared = append(whole, free/8), append(shared, free)
				n++
			}
			spine.Child = append(spine.Child, leaf)
		}
		groups = append(groups, spine)
	}
	return groups, whole, shared
}

// BenchmarkPlace is one plan, from the room on every node to the node of every
// rank.
func BenchmarkPlace(b *testing.B) {
	for _, size := range []struct{ pods, nodes int }{{8, 4608}, {64, 16384}, {4096, 100000}} {
		groups, whole, shared := cluster(size.nodes)
		tree, err := placement.New(groups)
		if err != nil {
			b.Fatal(err)
		}
		workers := placement.Task{Name: "worker", Pods: size.pods, GPUs: 8}
		master := placement.Task{Name: "master", Class: 1, Pods: 1}
		light := make([]int32, len(whole))
		for i := range light {
			light[i] = 20
		}
		for _, tt := range []struct {
			name string
			gang placement.Gang
			room placement.Capacity
		}{
			{"whole", placement.Gang{Tasks: []placement.Task{workers}}, placement.Capacity{Fit: [][]int32{whole}}},
			{"shared", placement.Gang{Tasks: []placement.Task{{Pods: size.pods, GPUs: 1}}}, placement.Capacity{Fit: [][]int32{shared}}},
			{"slices", placement.Gang{Tasks: []placement.Task{workers}, Slice: 64}, placement.Capacity{Fit: [][]int32{whole}}},
			{"master", placement.Gang{Tasks: []placement.Task{master, workers}}, placement.Capacity{
				Fit:      [][]int32{whole, light},
				Together: func(int32, []int32) bool { return true },
			}},
			{"rejected", placement.Gang{Tasks: []placement.Task{workers}, Require: "leaf"}, placement.Capacity{Fit: [][]int32{whole}}},
		} {
			b.Run(fmt.Sprintf("%s/%d/%d", tt.name, size.pods, size.nodes), func(b *testing.B) {
				plan, rejection := placement.Place(tree, &tt.gang, &tt.room)
				if (rejection != nil) != (tt.name == "rejected" && size.pods > 16) {
					b.Fatal(rejection)
				}
				if rejection == nil && plan.Pods != size.pods && plan.Pods != size.pods+1 {
					b.Fatalf("%+v", plan)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := placement.Place(tree, &tt.gang, &tt.room); (err != nil) != (rejection != nil) {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkShapes is 4,096 pods on maps that are nothing like a fat tree.
func BenchmarkShapes(b *testing.B) {
	const all = 100000
	for _, tt := range []struct {
		name string
		size int
	}{{"one-group", all}, {"pairs", 2}, {"no-groups", 0}} {
		b.Run(tt.name, func(b *testing.B) {
			names := make([]string, all)
			room := make([]int32, all)
			rng := rand.New(rand.NewPCG(8, 8))
			for i := range names {
				names[i], room[i] = fmt.Sprint("n", i), int32(rng.IntN(3))
			}
			groups := nodes(names...)
			if tt.size > 0 {
				var in []v1alpha1.Group
				for i := 0; i < all; i += tt.size {
					in = append(in, of("dragonfly", fmt.Sprint("d", i), groups[i:i+tt.size]...))
				}
				groups = in
			}
			tree, err := placement.New(groups)
			if err != nil {
				b.Fatal(err)
			}
			g, c := placement.Gang{Tasks: workers(4096)}, placement.Capacity{Fit: [][]int32{room}}
			b.ReportAllocs()
			for b.Loop() {
				if _, rejection := placement.Place(tree, &g, &c); rejection != nil {
					b.Fatal(rejection)
				}
			}
		})
	}
}
