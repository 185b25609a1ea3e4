package packing

import (
	"fmt"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

type amounts = map[corev1.ResourceName]int64

func TestCost(t *testing.T) {
	learned := func() *Demand {
		var d Demand
		d.Select("T4", []string{"t4"}, 20_000)
		for range 50 { // 10 cores and 64 of memory for each GPU; a third GPU of four is asked for on t4 alone.
			d.Add(2*Whole, amounts{"cpu": 20_000, "memory": 128}, 80_000, "")
			d.Add(1*Whole, amounts{"cpu": 10_000, "memory": 64}, 80_000, "T4")
		}
		return &d
	}
	for _, tt := range []struct {
		name, node      string
		before, after   Room
		want, tolerance float64
	}{
		{"a GPU with what it needs", "n", Room{800, 0, []int64{80_000, 512}}, Room{700, 0, []int64{70_000, 448}}, 100, 0.1},
		{"a GPU with twice the CPU", "n", Room{800, 0, []int64{80_000, 512}}, Room{700, 0, []int64{60_000, 448}}, 200, 0.1},
		{"CPU of idle GPUs", "n", Room{800, 0, []int64{80_000, 512}}, Room{800, 0, []int64{70_000, 512}}, 100, 0.1},
		{"memory of idle GPUs", "n", Room{800, 0, []int64{80_000, 512}}, Room{800, 0, []int64{80_000, 256}}, 400, 0.1},
		{"CPU to spare", "n", Room{200, 0, []int64{80_000, 512}}, Room{200, 0, []int64{20_000, 512}}, 0, 0},
		{"no GPU is idle", "n", Room{0, 0, []int64{80_000, 512}}, Room{0, 0, []int64{0, 0}}, 0, 0},
		{"GPUs that have no CPU already", "n", Room{800, 0, []int64{0, 512}}, Room{700, 0, []int64{0, 512}}, 100, 0},
		{"a share of a GPU in use", "n", Room{150, 50, []int64{80_000, 512}}, Room{110, 10, []int64{80_000, 512}}, 40, 0},
		{"a share of an idle GPU", "n", Room{150, 50, []int64{80_000, 512}}, Room{90, 90, []int64{80_000, 512}}, 100, 0},
		{"a resource that the node does not have", "n", Room{800, 0, []int64{-1, 512}}, Room{700, 0, []int64{-1, 512}}, 100, 0.1},
		// A third of what is asked for may use a quarter of the GPUs.
		{"a GPU that others need", "t4", Room{200, 0, []int64{80_000, 512}}, Room{100, 0, []int64{80_000, 512}}, 100 * (1 + 4.0/3), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := learned().Cost(tt.node, tt.before, tt.after); math.Abs(got-tt.want) > tt.tolerance {
				t.Errorf("%.2f, want %.2f", got, tt.want)
			}
		})
	}
	var none Demand
	if got := none.Cost("n", Room{GPUs: 300}, Room{GPUs: 100}); got != 200 {
		t.Errorf("%v of a demand that has learned nothing", got)
	}
}

// What pods asked for long ago does not count, however long that goes on.
func TestForgets(t *testing.T) {
	var d Demand
	add := func(times int, cpu int64, of string) {
		for range times {
			d.Add(Whole, amounts{"cpu": cpu}, 800, of)
		}
	}
	d.Select("old", []string{"old", "both"}, 100)
	add(4000, 50_000, "old")
	add(100, 10_000, "")
	if got := d.usable(Room{800, 0, []int64{40_000}}); math.Abs(got-400) > 0.1 {
		t.Errorf("40 cores are for %.2f percent", got)
	}
	cost := func(node string) float64 {
		return d.Cost(node, Room{GPUs: 100, Left: []int64{-1}}, Room{Left: []int64{-1}})
	}
	if got := cost("old"); got > 100.1 {
		t.Errorf("a GPU for which nobody asks any longer costs %.2f", got)
	}
	add(100, 10_000, "old")
	d.Select("old", []string{"both"}, 100)
	if got := cost("old"); got != 100 {
		t.Errorf("a GPU of a node that the class no longer selects costs %.2f", got)
	}
	if got := cost("both"); got < 200 {
		t.Errorf("a GPU that a class selects costs %.2f", got)
	}
	for i := range maxClasses {
		d.Select(fmt.Sprint("new", i), nil, 0)
	}
	if len(d.classes) != maxClasses || d.classes["old"] == nil || d.classes["new0"] != nil {
		t.Errorf("%d classes; the one that asked for most is known: %v", len(d.classes), d.classes["old"] != nil)
	}
}
