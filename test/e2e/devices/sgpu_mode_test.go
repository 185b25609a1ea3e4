//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// wish is a configuration of modes: the cards that it shares.
type wish struct {
	config string
	shared []int
}

func wishes() []wish {
	return []wish{
		{quickHealth + "mode: native\n", nil},
		{quickHealth + "mode: sgpu\nsgpu: {gpus: [0, 1, 2, 3]}\n", []int{0, 1, 2, 3}},
		{quickHealth + "mode: sgpu\n", []int{0, 1, 2, 3, 4, 5, 6, 7}},
	}
}

// TestModeSwitchUnderLoad changes the mode of the node fifty times, by the
// ConfigMap, while pods with whole cards and with shares come and go. No card is
// ever advertised twice, none is lost, and two cards in use keep their mode all
// the time, which the Node and doctor explain.
func TestModeSwitchUnderLoad(t *testing.T) {
	const switches, period = 50, 10
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := sgpu(t)
	r.configure(t, wishes()[1].config)
	r.waitModes(t, wishes()[1].shared, held{-1, -1})
	r.waitShares(t, 4*16, 400, 4*79)
	r.create(t, r.pod("whole", box{gpus: 1}), r.pod("part", box{more: share(60, 4)}))
	r.waitReady(t, "whole", waitStart)
	r.waitReady(t, "part", waitStart)
	whole := r.index(t, r.has(t, "whole", "app", 1, 0).GPUs[0])
	part := r.index(t, r.hasShares(t, "part", "app", 0, slice(60, 4))[0].UUID)
	before := r.started(t, "whole") + r.started(t, "part")
	holders := held{whole: whole, part: part}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l := &load{rig: r}
	l.start(ctx, t, seed)
	now, longest := 1, time.Duration(0)
	// A busy node may run none of the pods in fifty switches: then it has some more.
	for i := 0; i < switches || l.ran.Load() == 0 && i < 4*switches; i++ {
		now = (now + 1 + random.IntN(2)) % 3
		if err := r.writeConfig(wishes()[now].config); err != nil {
			t.Fatal(err)
		}
		if i%period < period-1 {
			sleep(ctx, time.Duration(200+random.IntN(1000))*time.Millisecond)
			continue
		}
		longest = max(longest, r.waitModes(t, wishes()[now].shared, holders))
	}
	stop()
	l.all.Wait()
	t.Logf("%d switches; all free cards had moved %.1f s after a switch at most; %d looks at the kubelet's list, "+
		"of %d pods %d ran and %d failed at admission", switches, longest.Seconds(), l.looks.Load(), l.pods.Load(), l.ran.Load(), l.failed.Load())
	if l.looks.Load() < switches || l.ran.Load() == 0 {
		t.Error("there was no load, or no look at it")
	}
	if after := r.started(t, "whole") + r.started(t, "part"); after != before {
		t.Errorf("pods noticed: they were %s, and are %s", before, after)
	}
	r.explained(t, holders)

	r.remove(t, "whole", "part")
	for _, w := range wishes() {
		if err := r.writeConfig(w.config); err != nil {
			t.Fatal(err)
		}
		t.Logf("all cards had moved %.1f s after a switch without load", r.waitModes(t, w.shared, held{-1, -1}).Seconds())
	}
	r.waitShares(t, allSlots, allCores, allGiB)
	r.waitAllocatable(t, gpuResource, 0, waitStart)
	if pending, message := r.pending(t); pending {
		t.Errorf("the Node still shows that %s", message)
	}
}

// held are the cards that pods hold, by index: whole, and a part of it; -1 for
// none.
type held struct{ whole, part int }

// explained switches so that each of the held cards should move, and looks how
// that is reported.
func (r *rig) explained(t *testing.T, h held) {
	t.Helper()
	for _, tt := range []struct {
		wish    wish
		message string
	}{
		{wishes()[2], fmt.Sprintf("GPU %d: native until default/whole ends, then sgpu", h.whole)},
		{wishes()[0], fmt.Sprintf("GPU %d: sgpu until default/part ends, then native", h.part)},
	} {
		if err := r.writeConfig(tt.wish.config); err != nil {
			t.Fatal(err)
		}
		eventually(t, waitStart, func() string {
			if pending, message := r.pending(t); !pending || message != tt.message {
				return fmt.Sprintf("HeddleModePending is %t with %q, want %q", pending, message, tt.message)
			}
			return ""
		})
		if out := r.heddle(t, "doctor", "--node", r.Node()); !strings.Contains(out, tt.message) {
			t.Errorf("doctor does not print %q:\n%s", tt.message, out)
		}
	}
}

// pending is the Node's condition.
func (r *rig) pending(t *testing.T) (pending bool, message string) {
	t.Helper()
	for _, c := range r.node(t).Status.Conditions {
		if c.Type == "HeddleModePending" {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, ""
}

// lists are the cards that the kubelet offers whole and in shares, by index.
func (r *rig) lists(ctx context.Context, gpus map[string]int) (whole, shared []int, err error) {
	answer, err := podresources.NewPodResourcesListerClient(r.conn).
		GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, nil, err
	}
	is := map[string]map[int]bool{gpuResource: {}, slotResource: {}}
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			if set := is[d.GetResourceName()]; set != nil {
				set[gpus[deviceIDOf(id)]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(is[gpuResource])), slices.Sorted(maps.Keys(is[slotResource])), nil
}

// indices are those of the cards, by UUID.
func (r *rig) indices(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	m := r.machine(t)
	for i := range m.GPUs {
		all[m.GPUs[i].UUID] = m.GPUs[i].Index
	}
	return all
}

// waitModes waits until the kubelet offers every card as it should: shared or
// whole, or to no pod if it is held in the other mode.
func (r *rig) waitModes(t *testing.T, share []int, h held) time.Duration {
	t.Helper()
	var want [2][]int
	for gpuAt := range 8 {
		shared := slices.Contains(share, gpuAt)
		switch {
		case shared && gpuAt != h.whole:
			want[1] = append(want[1], gpuAt)
		case !shared && gpuAt != h.part:
			want[0] = append(want[0], gpuAt)
		}
	}
	gpus := r.indices(t)
	// A busy kubelet answers late, and without its answer no GPU moves.
	return eventually(t, 3*waitStart, func() string {
		whole, shared, err := r.lists(t.Context(), gpus)
		if err != nil {
			return err.Error()
		}
		return cmp.Diff(want, [2][]int{whole, shared})
	})
}

// load is pods that come and go, and a look at what is advertised meanwhile.
type load struct {
	rig                      *rig
	all                      sync.WaitGroup
	looks, pods, ran, failed atomic.Int64
}

// start runs until ctx ends.
func (l *load) start(ctx context.Context, t *testing.T, seed uint64) {
	t.Helper()
	const workers = 4
	for i := range workers {
		l.all.Go(func() { l.work(ctx, t, rand.New(rand.NewPCG(seed, uint64(i+1))), i) })
	}
	gpus := l.rig.indices(t)
	l.all.Go(func() { l.look(ctx, t, gpus) })
}

// work makes one pod after the other, with a whole card or a part of one.
func (l *load) work(ctx context.Context, t *testing.T, random *rand.Rand, n int) {
	api := l.rig.client.CoreV1().Pods(namespace)
	last := context.WithoutCancel(ctx)
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("load-%d-%d", n, i)
		p := l.rig.pod(name, box{gpus: 1})
		if random.IntN(2) == 0 {
			p = l.rig.pod(name, box{more: share(20+random.IntN(60), 2)})
		}
		if _, err := api.Create(last, p, metav1.CreateOptions{}); err != nil {
			t.Errorf("create %s: %v", name, err)
			return
		}
		l.pods.Add(1)
		if ran, failed := l.rig.await(ctx, name, waitStart); failed {
			l.failed.Add(1)
		} else if ran {
			l.ran.Add(1)
			sleep(ctx, time.Duration(random.IntN(1500))*time.Millisecond)
		}
		if err := api.Delete(last, name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	}
}

// look asks the kubelet ten times a second, and the Node three times, which
// cards they have: none of them twice.
func (l *load) look(ctx context.Context, t *testing.T, gpus map[string]int) {
	for i := 0; ctx.Err() == nil; i++ {
		sleep(ctx, 100*time.Millisecond)
		whole, shared, err := l.rig.lists(ctx, gpus)
		if err != nil {
			continue // The kubelet admits so many calls a second, and the plugin asks too.
		}
		l.looks.Add(1)
		for _, gpuAt := range whole {
			if slices.Contains(shared, gpuAt) {
				t.Errorf("card %d is advertised whole and in shares", gpuAt)
			}
		}
		if i%3 > 0 {
			continue
		}
		n, err := l.rig.client.CoreV1().Nodes().Get(ctx, l.rig.Node(), metav1.GetOptions{})
		if err != nil {
			continue
		}
		gpus, slots := n.Status.Allocatable[gpuResource], n.Status.Allocatable[slotResource]
		if total := gpus.Value() + (slots.Value()+15)/16; total > 8 {
			t.Errorf("the Node offers %d whole GPUs and %d slots: %d cards of 8", gpus.Value(), slots.Value(), total)
		}
	}
}
