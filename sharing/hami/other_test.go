package hami_test

import (
	"math/rand/v2"
	"testing"

	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// counts is what HAMi has on its account of a GPU.
type counts struct{ used, cores, memory int32 }

// fits is HAMi's rule for a GPU and a request: Fit of pkg/device/metax/sdevice.go, from
// the slots to the compute. It returns the memory that HAMi counts.
func fits(g hami.NodeGPU, has counts, r *quota.Request) (memory int32, ok bool) {
	cores := int32(r.VCore)
	if memory = int32(r.MemoryMiB); memory == 0 {
		memory = g.TotalVRam
	}
	switch {
	case g.TotalDevCount <= has.used, g.TotalVRam-has.memory < memory, g.TotalCompute-has.cores < cores,
		g.TotalCompute == 100 && cores == 100 && has.used > 0,
		g.TotalCompute != 0 && has.cores == g.TotalCompute && cores == 0,
		g.QoSPolicy != "" && g.QoSPolicy != string(r.Policy):
		return 0, false
	}
	return memory, true
}

// TestOthersAreOnHAMisAccount: whatever consumers a GPU has, of HAMi's and of the node's own
// choosing, a request that fits by HAMi's rule fits on the node, with the memory that
// HAMi counts.
func TestOthersAreOnHAMisAccount(t *testing.T) {
	random := rand.New(rand.NewPCG(14, 5))
	chosen, rejected := 0, 0
	for range 20000 {
		g := gpu(gpuA, 0)
		g.MemoryMiB, g.Slots = 8000, 4
		var has counts
		for range random.IntN(6) {
			r := &quota.Request{
				GPUs: 1, VCore: []int{0, 10, 30, 60, 100}[random.IntN(5)], MemoryMiB: []int64{0, 1000, 3000, 8000}[random.IntN(4)],
				Policy: quota.BestEffort,
			}
			own := random.IntN(2) == 0
			memory, ok := fits(allocationOf(t, g), has, r)
			if own {
				if g.Reject(r).None() {
					take(&g, r)
					g.Other.Consumers, g.Other.VCore = g.Other.Consumers+1, g.Other.VCore+r.VCore
					g.Other.UsedMiB += r.MemoryOf(g.MemoryMiB)
					g.Other.Exclusive = g.Other.Exclusive || r.VCore == quota.Whole
				}
				continue
			}
			if !ok {
				rejected++
				continue
			}
			counted := *r
			counted.MemoryMiB = int64(memory)
			if reason := g.Reject(&counted); !reason.None() {
				t.Fatalf("HAMi chooses a GPU with %+v, of which others have %+v, for %+v: %v", g.GPU, g.Other, counted, reason)
			}
			chosen++
			take(&g, &counted)
			has = counts{has.used + 1, has.cores + int32(r.VCore), has.memory + memory}
		}
	}
	if chosen < 1000 || rejected < 1000 {
		t.Errorf("%d chosen, %d rejected", chosen, rejected)
	}
}

func take(g *hami.GPU, r *quota.Request) {
	g.Charge(quota.Load{Consumers: 1, VCore: r.VCore, MemoryMiB: r.MemoryOf(g.MemoryMiB)})
	g.Policy, g.Exclusive = r.Policy, g.Exclusive || r.VCore == quota.Whole
}

// allocationOf is what HAMi reads of a GPU.
func allocationOf(t *testing.T, g hami.GPU) hami.NodeGPU {
	t.Helper()
	list, err := hami.ParseNodeGPUs(hami.Annotation([]hami.GPU{g}, true))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	return list[0]
}
