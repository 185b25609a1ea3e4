package quota_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

const (
	binpack = config.PlacementBinpack
	spread  = config.PlacementSpread
)

// GPUs makes idle GPUs of 80 GiB, from `NUMA/zone` each.
func gpus(tb testing.TB, where ...string) []quota.GPU {
	tb.Helper()
	all := make([]quota.GPU, len(where))
	for i, w := range where {
		c := &all[i]
		*c = quota.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, MemoryMiB: 80 * gib, Slots: 16}
		if _, err := fmt.Sscanf(w, "%d/%d", &c.NUMA, &c.Zone); err != nil {
			tb.Fatal(err)
		}
	}
	return all
}

// hgx are 8 GPUs on an NVSwitch, four at each processor; pairs are joined two
// by two with bridges; pcie are joined with none.
func hgx(tb testing.TB) []quota.GPU {
	tb.Helper()
	return gpus(tb, "0/1", "0/1", "0/1", "0/1", "1/1", "1/1", "1/1", "1/1")
}

func pairs(tb testing.TB) []quota.GPU {
	tb.Helper()
	return gpus(tb, "0/1", "0/1", "0/2", "0/2", "1/3", "1/3", "1/4", "1/4")
}

func pcie(tb testing.TB) []quota.GPU {
	tb.Helper()
	return gpus(tb, "0/0", "0/0", "1/0", "1/0")
}

// fill gives each GPU a fixed-share consumer of percent/GiB; "" none.
func fill(t *testing.T, gpus []quota.GPU, consumers ...string) []quota.GPU {
	t.Helper()
	for i, text := range consumers {
		r := quota.Request{GPUs: 1, Policy: quota.FixedShare}
		if text == "" {
			continue
		}
		if _, err := fmt.Sscanf(text, "%d/%d", &r.VCore, &r.MemoryMiB); err != nil {
			t.Fatal(err)
		}
		r.MemoryMiB *= gib
		take(&gpus[i], &r)
	}
	return gpus
}

func share(n, vcore int, memory int64) quota.Request {
	return quota.Request{GPUs: n, VCore: vcore, MemoryMiB: memory * gib, Policy: quota.FixedShare}
}

func TestPlace(t *testing.T) {
	ill := func(gpus []quota.GPU, of ...int) []quota.GPU {
		for _, i := range of {
			gpus[i].Unhealthy = "ill"
		}
		return gpus
	}
	small := func(gpus []quota.GPU, of ...int) []quota.GPU {
		for _, i := range of {
			gpus[i].MemoryMiB = 24 * gib
		}
		return gpus
	}
	for _, test := range []struct {
		name string
		gpus []quota.GPU
		r    quota.Request
		how  config.Placement
		want []int
	}{
		{"an idle node", hgx(t), share(1, 30, 4), binpack, []int{0}},
		{"a used GPU before idle ones", fill(t, hgx(t), "", "", "30/4"), share(1, 30, 4), binpack, []int{2}},
		{"the fuller one", fill(t, hgx(t), "", "", "30/30", "40/40"), share(1, 30, 4), binpack, []int{3}},
		{"the fuller one is too full", fill(t, hgx(t), "", "", "30/30", "80/40"), share(1, 30, 4), binpack, []int{2}},
		{"much compute where memory is short", fill(t, hgx(t), "40/8", "8/40"), share(1, 50, 2), binpack, []int{1}},
		{"much memory where compute is short", fill(t, hgx(t), "40/8", "8/40"), share(1, 2, 40), binpack, []int{0}},
		{"the smaller GPU, alone", small(hgx(t), 5), share(1, 100, 0), binpack, []int{5}},
		{"a broken pair, not a whole one", fill(t, pairs(t), "", "", "", "", "", "100/1"), share(1, 100, 0), binpack, []int{4}},
		{"spread over an idle node", hgx(t), share(1, 30, 4), spread, []int{0}},
		{"spread to the next idle GPU", fill(t, hgx(t), "1/1", "1/1"), share(1, 30, 4), spread, []int{2}},
		{"spread to the one with the most left", fill(t, pcie(t), "50/4", "30/30", "20/70", "40/40"), share(1, 10, 4), spread, []int{1}},
		{"spread to the one with fewer consumers", fill(t, fill(t, pcie(t), "10/10", "20/20", "20/20", "20/20"), "10/10"), share(1, 10, 10), spread, []int{1}},
		{"one NUMA node of the switch", hgx(t), share(4, 100, 0), binpack, []int{0, 1, 2, 3}},
		{"the node that has enough", ill(hgx(t), 1), share(4, 100, 0), binpack, []int{4, 5, 6, 7}},
		{"the node with fewer", ill(hgx(t), 5, 6), share(2, 100, 0), binpack, []int{4, 7}},
		{"all nodes", ill(hgx(t), 1, 6), share(5, 100, 0), binpack, []int{0, 2, 3, 4, 5}},
		{"a pair", fill(t, pairs(t), "10/10", "", "", "10/10"), share(2, 100, 0), binpack, []int{4, 5}},
		{"a pair, although single GPUs are fuller", fill(t, pairs(t), "50/50", "10/10", "50/50"), share(2, 10, 10), binpack, []int{0, 1}},
		{"two pairs of a node", ill(pairs(t), 0), share(4, 100, 0), binpack, []int{4, 5, 6, 7}},
		{"a pair and one of a broken pair", ill(pairs(t), 0, 4, 5), share(3, 100, 0), binpack, []int{1, 2, 3}},
		{"two pairs before single GPUs", ill(pairs(t), 0, 4), share(4, 100, 0), binpack, []int{2, 3, 6, 7}},
		{"the smaller zone", gpus(t, "0/1", "0/1", "0/1", "0/2", "0/2"), share(2, 30, 4), binpack, []int{3, 4}},
		{"no zones: a NUMA node", ill(pcie(t), 0), share(2, 30, 4), binpack, []int{2, 3}},
		{"no zones: the fuller node", fill(t, pcie(t), "", "", "10/10"), share(2, 30, 4), binpack, []int{2, 3}},
		{"no zones, nodes unknown", fill(t, gpus(t, "-1/0", "-1/0", "-1/0"), "", "10/10"), share(2, 30, 4), binpack, []int{0, 1}},
		{"spread in a zone", fill(t, hgx(t), "10/10", "", "10/10", "", "", "", "", "10/10"), share(2, 30, 4), spread, []int{1, 3}},
		{"as many as there are", pcie(t), share(4, 30, 4), binpack, []int{0, 1, 2, 3}},
		{"more than there are", pcie(t), share(5, 30, 4), binpack, nil},
		{"no GPUs", nil, share(1, 30, 4), binpack, nil},
		{"none asked", pcie(t), share(0, 30, 4), binpack, nil},
		{"none free", fill(t, pcie(t), "80/4", "80/4", "80/4", "80/4"), share(1, 30, 4), binpack, nil},
	} {
		got, ok := quota.Place(test.gpus, &test.r, test.how, nil)
		if diff := gocmp.Diff(test.want, got); diff != "" || ok != (test.want != nil) {
			t.Errorf("%s: %v (-want +got):\n%s", test.name, ok, diff)
		}
	}
}

func TestPlaceKeepsToItself(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		gpus, r := random(rng), randomRequest(rng)
		r.GPUs = 1 + rng.IntN(3)
		before := slices.Clone(gpus)
		first, ok := quota.Place(gpus, &r, binpack, nil)
		if diff := gocmp.Diff(before, gpus); diff != "" {
			t.Fatalf("Place changed the GPUs (-want +got):\n%s", diff)
		}
		second, again := quota.Place(gpus, &r, binpack, make([]int, 30))
		if ok != again || !slices.Equal(first, second) {
			t.Fatalf("%v and then %v", first, second)
		}
		if why := quota.Explain(gpus, &r); ok != (why == "") || len(why) > quota.MaxExplanation {
			t.Fatalf("placed %v, explained %q", ok, why)
		}
	}
}

func TestPlaceManyGPUs(t *testing.T) {
	all := make([]quota.GPU, 100)
	for i := range all {
		all[i] = quota.GPU{UUID: fmt.Sprint(i), Index: i, MemoryMiB: gib, Slots: 1, NUMA: i % 8, Zone: i % 16}
	}
	r := share(quota.MaxGPUs, 10, 1)
	out, ok := quota.Place(all, &r, binpack, nil)
	if !ok || len(out) != quota.MaxGPUs || out[quota.MaxGPUs-1] >= quota.MaxGPUs {
		t.Errorf("%v %v, want the first %d", out, ok, quota.MaxGPUs)
	}
	r.GPUs++
	if out, ok := quota.Place(all, &r, binpack, out); ok || len(out) > 0 {
		t.Errorf("%v GPUs placed", out)
	}
}

// busy is 16 GPUs in two zones on two nodes with 16 consumers each.
func busy() []quota.GPU {
	rng := rand.New(rand.NewPCG(7, 8))
	all := make([]quota.GPU, 16)
	for i := range all {
		c := &all[i]
		*c = quota.GPU{UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i), Index: i, MemoryMiB: 143771, Slots: 100, NUMA: i / 8, Zone: 1 + i/8}
		for c.Consumers < 16 {
			r := share(1, 1+rng.IntN(5), int64(1+rng.IntN(7)))
			if c.Reject(&r).None() {
				take(c, &r)
			}
		}
	}
	return all
}

// requests are of all sorts, 256 of them.
func requests(all []quota.GPU, n int) []quota.Request {
	rng := rand.New(rand.NewPCG(9, 10))
	list := make([]quota.Request, 256)
	for i := range list {
		list[i] = share(n, 1+rng.IntN(25), int64(1+rng.IntN(40)))
		if i%4 == 0 {
			list[i].Use = []string{all[3].UUID, all[5].UUID, all[7].UUID, all[9].UUID}
			list[i].Avoid = []string{all[5].UUID}
		}
	}
	return list
}

func TestRequestPlacement(t *testing.T) {
	gpus := []quota.GPU{
		{UUID: "used", MemoryMiB: 1 << 14, Slots: 4, VCore: 10, UsedMiB: 1 << 10, Consumers: 1, Policy: quota.FixedShare},
		{UUID: "idle", MemoryMiB: 1 << 14, Slots: 4},
	}
	for _, tt := range []struct {
		pod, configured config.Placement
		want            int
	}{
		{"", config.PlacementBinpack, 0},
		{"", config.PlacementSpread, 1},
		{config.PlacementSpread, config.PlacementBinpack, 1},
		{config.PlacementBinpack, config.PlacementSpread, 0},
	} {
		annotations := map[string]string{wellknown.SGPUPlacement: string(tt.pod)}
		r, err := quota.ParseRequest(limits(t, "sgpu=1 vcore=10 vmemory=1"), annotations, node(t))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := quota.Place(gpus, &r, tt.configured, nil); !ok || got[0] != tt.want {
			t.Errorf("%q before %q: GPU %v", tt.pod, tt.configured, got)
		}
	}
}

// BenchmarkPlace places one request among 16 GPUs of 16 consumers each.
func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{1, 4, 12} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := busy()
			list, out := requests(all, n), make([]int, 0, quota.MaxGPUs)
			took := make([]time.Duration, 0, 1<<20)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				start := time.Now()
				out, _ = quota.Place(all, &list[i%len(list)], binpack, out)
				if len(took) < cap(took) {
					took = append(took, time.Since(start))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-us")
		})
	}
}
