package devicestate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
)

// TestManySharesAtOnce starts a hundred containers at once, whose pods ask for
// more than there is. What is given out is never more than there is, every
// container that starts sees its own, and every other one gets a reason.
func TestManySharesAtOnce(t *testing.T) {
	r := shareRig(t)
	const n = 100
	rng := rand.New(rand.NewPCG(1, 2))
	type consumer struct {
		want  asks
		names map[string]string
		share allocation.Share
	}
	consumers := make([]consumer, n)
	for i := range consumers {
		ask, annotations := fmt.Sprintf("%d/%d", 5+rng.IntN(20), 1+rng.IntN(12)), map[string]string(nil)
		gpu := rng.IntN(8)
		if i%2 == 0 { // Forged or not: all of them name the same two GPUs.
			annotations = r.chosen("gpu-1", map[string][]allocation.Share{"main": {r.share(gpu%2, ask)}})
		}
		name := fmt.Sprintf("pod-%d", i)
		r.wants(name, annotations, sharer("main", ask))
		consumers[i].want = asks{slots: {r.slot(i%8, i/8)}}
		consumers[i].share = r.share(0, ask)
		consumers[i].names = r.allocate(pod(name), "main", consumers[i].want)
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range consumers {
		all.Go(func() { errs[i] = r.prepareShares(consumers[i].want) })
	}
	all.Wait()
	started := 0
	for i := range consumers {
		if errs[i] != nil {
			if !strings.Contains(errs[i].Error(), "gets no GPU") {
				t.Errorf("pod-%d: %v", i, errs[i])
			}
			continue
		}
		started++
		got := r.mustEnter(consumers[i].names)
		want := consumers[i].share
		if len(got.Devices.GPUs) != 1 || got.Devices.Pod != fmt.Sprintf("pod-%d", i) ||
			got.Devices.GPUs[0].Share.VCore != want.VCore || got.Devices.GPUs[0].Share.MemoryMiB != want.MemoryMiB {
			t.Errorf("pod-%d asks for %+v and sees %+v", i, want, got.Devices)
		}
		if diff := cmp.Diff([]string{fmt.Sprintf("/dev/nvidia%d", got.Devices.GPUs[0].Index)}, got.Nodes); diff != "" {
			t.Errorf("pod-%d (-want +got):\n%s", i, diff)
		}
		if i%2 == 0 && got.Devices.GPUs[0].Index > 1 {
			t.Errorf("pod-%d was scheduled elsewhere than to GPU %d", i, got.Devices.GPUs[0].Index)
		}
	}
	if started < 40 || started == n || len(r.Rejections()) != n-started {
		t.Errorf("%d of %d have started, %d are rejected", started, n, len(r.Rejections()))
	}
	r.nothingOvercommitted()
	calls, rejected := r.kubelet.PodResourcesCalls()
	if calls-rejected > n/2 {
		t.Errorf("%d calls of PodResources for %d starts", calls-rejected, n)
	}
	t.Logf("%d of %d started, %d calls of PodResources, %d rejected", started, n, calls, rejected)
	// After a restart all is as it was.
	before := r.View().Allocations()
	r.restart()
	for i := range consumers {
		if errs[i] == nil {
			r.start(consumers[i].want)
		}
	}
	if diff := cmp.Diff(before, r.View().Allocations()); diff != "" {
		t.Errorf("bindings (-before +after):\n%s", diff)
	}
}

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
