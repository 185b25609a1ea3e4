package devicestate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

// TestChurnOfShares: pods come and go at random while starts run side by side.
// No GPU is ever over-committed, and in the end nothing is taken.
func TestChurnOfShares(t *testing.T) {
	r := shareRig(t, "0", "1", "2")
	rng := rand.New(rand.NewPCG(3, 4))
	live, held := map[string]asks{}, map[string]string{}
	for round := range 40 {
		var all sync.WaitGroup
		for i := range 6 {
			name, id := fmt.Sprintf("pod-%d-%d", round, i), r.slot(i%3, (round*6+i)%16)
			ask := fmt.Sprintf("%d/%d", 10+rng.IntN(60), 1+rng.IntN(30))
			if held[id] != "" {
				continue
			}
			held[id] = name
			live[name] = r.consumer(name, ask, id)
		}
		for _, want := range live {
			all.Go(func() { _ = r.prepareShares(want) })
		}
		all.Wait()
		r.nothingOvercommitted()
		if round%7 == 3 {
			r.restart()
		}
		for name := range live {
			if rng.IntN(3) == 0 {
				r.kubelet.Delete("default", name)
				delete(held, live[name][slots][0])
				delete(live, name)
			}
		}
		if _, err := r.observe(t.Context()); err != nil { // The kubelet frees what is gone.
			t.Fatal(err)
		}
	}
	for name := range live {
		r.kubelet.Delete("default", name)
	}
	for _, gpu := range r.nothingOvercommitted() {
		if gpu.VCore != 0 || gpu.UsedMiB != 0 || gpu.Consumers != 0 {
			t.Errorf("taken without a pod: %+v", gpu)
		}
	}
	if len(r.View().Allocations()) > 0 {
		t.Errorf("bindings %+v", r.View().Allocations())
	}
}

// TestTwoPodsWithOneDeviceID, as a kubelet does that has forgotten one of them:
// both count, each by what it was given.
func TestTwoPodsWithOneDeviceID(t *testing.T) {
	r := shareRig(t, "0")
	for _, name := range []string{"a", "b"} {
		if err := r.prepareShares(r.consumer(name, "40/30", r.slot(0, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.prepareShares(r.consumer("c", "40/1", r.slot(0, 0))); err == nil || !strings.Contains(err.Error(), "20 % of 100 left") {
		t.Errorf("error %v", err)
	}
	r.nothingOvercommitted()
}
