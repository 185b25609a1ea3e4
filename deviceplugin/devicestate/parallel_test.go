package devicestate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
)

// allocatePods allocates for n pods: the first eight have a GPU each, all have two
// device IDs of neighboring HCAs.
func (r *rig) allocatePods(n int) (wants []asks, names []map[string]string) {
	r.tb.Helper()
	fabric := []string{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"}
	for i := range n {
		name := fmt.Sprintf("pod-%d", i)
		r.spec(name, corev1.Container{Name: "main"})
		want := asks{hcas: r.deviceIDs(
			fmt.Sprintf("%s/%d", fabric[i%8], i/8), fmt.Sprintf("%s/%d", fabric[(i+3)%8], 32+i/8))}
		if i < 8 {
			want[gpus] = r.gpuIDs(i)
		}
		wants = append(wants, want)
		names = append(names, r.allocate(pod(name), "main", want))
	}
	return wants, names
}

func TestHundredAtOnce(t *testing.T) {
	r := newRig(t)
	const n = 100
	wants, names := r.allocatePods(n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for resource, ids := range wants[i] {
				if err := r.Prepare(t.Context(), resource, ids); err != nil {
					t.Error(err)
				}
				// One resource is enough for the binding, both are for the specs.
			}
		})
	}
	all.Wait()
	uses := make(map[string]int)
	for i := range n {
		got := r.mustEnter(names[i])
		if got.Devices.Pod != fmt.Sprintf("pod-%d", i) || len(got.given()) != 2 || len(got.Nodes) != 3 {
			t.Errorf("pod-%d sees %+v", i, got)
		}
		if i < 8 && (len(got.Devices.GPUs) != 1 || got.Devices.GPUs[0].Index != i || got.Devices.GPUs[0].Class != "PIX") {
			t.Errorf("pod-%d has GPUs %+v", i, got.Devices.GPUs)
		}
		for _, hca := range got.given() {
			uses[hca]++
		}
	}
	for hca, used := range uses {
		if used > 64 {
			t.Errorf("%s is shared by %d", hca, used)
		}
	}
	calls, rejected := r.kubelet.PodResourcesCalls()
	if calls-rejected > n/2 {
		t.Errorf("%d calls of PodResources for %d starts", calls-rejected, n+8)
	}
	t.Logf("%d starts: %d calls of PodResources, %d rejected", n+8, calls, rejected)
}

func BenchmarkPrepare(b *testing.B) {
	r := newRig(b)
	// The CDI directory is on a tmpfs, as /var/run/cdi; the state is on a disk.
	if dir, err := os.MkdirTemp("/dev/shm", "cdi"); err == nil { //nolint:usetesting // TempDir is on a disk.
		b.Cleanup(func() { _ = os.RemoveAll(dir) })
		r.options.CDIDir = dir
		r.restart()
	}
	wants, _ := r.allocatePods(100)
	for _, want := range wants {
		r.start(want)
	}
	r.spec("next", corev1.Container{Name: "main"})
	var took []time.Duration
	limit := time.NewTicker(12 * time.Millisecond) // The kubelet takes 100 calls a second.
	defer limit.Stop()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		want := asks{hcas: r.deviceIDs("mlx5_0/60", "mlx5_9/60")}
		r.allocate(pod("next"), "main", want)
		<-limit.C
		b.StartTimer()
		start := time.Now()
		if err := r.Prepare(b.Context(), hcas, want[hcas]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// TestDecisionsLaterThanTheSnapshotCount: two starts looked at the kubelet at
// the same time, and one decides after the other.
func TestDecisionsLaterThanTheSnapshotCount(t *testing.T) {
	r := newRig(t, func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 1 })
	want := asks{gpus: r.gpuIDs(0), hcas: r.deviceIDs("mlx5_9")}
	names := r.allocate(pod("a"), "main", want)
	before, err := r.observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := asks{hcas: r.deviceIDs("mlx5_0")}
	r.allocate(pod("other"), "main", other)
	r.start(other)
	if err := r.prepare(t.Context(), before.Owners(hcas, want[hcas])[0].Container, before); err != nil {
		t.Fatal(err)
	}
	if got := r.mustEnter(names); slices.Contains(got.given(), "mlx5_0") {
		t.Errorf("two containers have %v", got.given())
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
