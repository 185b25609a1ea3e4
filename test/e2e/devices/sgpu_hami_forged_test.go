//go:build e2e && linux

package devices

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

// hamiForged: what is not HAMi's word, or not of this pod, is not followed.
func hamiForged(t *testing.T, r *rig, _ *lockLog) {
	h := r.replay(t, hamirecord.V210)
	sample := h.Pod(t, "sample-pod") // 60 % and 4 GiB of this GPU.
	full := recordedShares(t, sample)["ubuntu"][0].UUID
	set := func(key, value string) func(map[string]string) { return func(a map[string]string) { a[key] = value } }
	gpus := func(text string) func(map[string]string) { return set(apinames.HAMiAllocation, text) }
	r.create(t, h.pod("holder", sample))
	h.decideAndBind(t, "holder", sample, nil)
	r.waitReady(t, "holder", waitStart)
	rows := []struct {
		name   string
		change func(map[string]string)
		// foreign is a pod of another scheduler's, unbound one that HAMi did not
		// bind.
		foreign, unbound bool
		message          string
	}{
		{name: "scheduler", foreign: true, message: `the pod's scheduler is "default-scheduler"`},
		{name: "unbound", unbound: true, message: "HAMi has not bound the pod"},
		{name: "node", change: set(apinames.HAMiNode, "node2"), message: `HAMi chose node "node2"`},
		{
			name: "later", change: set(apinames.HAMiPredicateTime, strconv.FormatInt(time.Now().Add(time.Hour).UnixNano(), 10)),
			message: "HAMi chose again after it had bound",
		},
		{name: "gpu", change: gpus(`[[{"uuid":"GPU-none","compute":60,"vRam":4096}]]`), message: "no shared GPU GPU-none"},
		{name: "more", change: gpus(`[[{"uuid":"` + r.gpuAt(t, 4) + `","compute":60,"vRam":8192}]]`), message: "the container requests 4096"},
		{name: "truncated", change: gpus(`[[{"uuid":"` + r.gpuAt(t, 4)), message: apinames.HAMiAllocation},
		{name: "count", change: gpus(`[[]]`), message: "0 GPUs for container ubuntu, which requests 1"},
		{
			name: "full", change: gpus(`[[{"uuid":"` + full + `","compute":60,"vRam":4096}]]`),
			message: fmt.Sprintf("hami chose a GPU that is not available: GPU %d: 40 %% of 100 left; needs 60", r.index(t, full)),
		},
	}
	for _, tt := range rows {
		p := h.pod("forged-"+tt.name, sample)
		if tt.foreign {
			p.Spec.SchedulerName = ""
		}
		if tt.foreign || tt.unbound {
			p.Spec.NodeName = r.Node()
			p.Annotations = sample.Bound().Annotations
			if tt.unbound {
				delete(p.Annotations, apinames.HAMiBindTime)
			}
			r.create(t, p)
			continue
		}
		r.create(t, p)
		h.decideAndBind(t, p.Name, sample, tt.change)
	}
	past, own := r.pod("forged-past", box{more: share(60, 4)}), r.pod("forged-own", box{more: share(60, 4)})
	past.Spec.NodeName, own.Spec.NodeName = r.Node(), r.Node()
	chosen := allocation.Allocation{
		Version: allocation.Version, Node: r.Node(), Containers: map[string][]allocation.Share{"app": {{
			UUID: r.gpuAt(t, 4), VCore: 60, MemoryMiB: 4096,
		}}},
	}
	own.Annotations = map[string]string{apinames.SGPUAllocation: chosen.String()}
	own.Labels = map[string]string{"hami.io/webhook": "ignore"}
	r.create(t, past, own)
	for _, tt := range rows {
		r.waitEvent(t, "forged-"+tt.name, "SGPURejected", tt.message, waitStart)
		if !tt.foreign && !tt.unbound {
			r.waitPhase(t, "forged-"+tt.name, "failed")
		}
	}
	r.waitEvent(t, "forged-past", "SGPURejected", "no scheduler chose a GPU, and sgpu.unscheduled is reject", waitStart)
	r.waitEvent(t, "forged-own", "SGPURejected", apinames.SGPUAllocation+" is not believed", waitStart)
	if got := r.count(t); len(got) != 1 || got[full].VCore != 60 {
		t.Errorf("taken of cards: %+v", got)
	}
}

// hamiOthers: what the node gives to a pod that HAMi did not schedule is taken from what HAMi
// reads, so that it does not choose that GPU for more than is left. A pod of HAMi's that asks
// for all memory gets what HAMi counted.
func hamiOthers(t *testing.T, r *rig, _ *lockLog) {
	r.configure(t, strings.Replace(hamiConfig, "unscheduled: reject", "unscheduled: place", 1))
	defer r.configure(t, hamiConfig)
	h := r.replay(t, hamirecord.V210)
	sample, gpu := h.Pod(t, "sample-pod"), r.gpuAt(t, 2)
	other := r.pod("other", box{more: share(30, 10)})
	// The policy that HAMi's webhook gives.
	other.Annotations = map[string]string{"nvidia.com/use-gpuuuid": gpu, "metax-tech.com/sgpu-qos-policy": "best-effort"}
	other.Spec.NodeName = r.Node() // The Node has no vcore and no vmemory for another scheduler.
	r.run(t, other)
	totals := func(count, compute, memory int32) {
		t.Helper()
		eventually(t, waitStart, func() string {
			is := r.hamiGPUs(t)[gpu]
			if got := [3]int32{is.TotalDevCount, is.TotalCompute, is.TotalVRam}; got != [3]int32{count, compute, memory} {
				return fmt.Sprintf("HAMi reads slots, compute and memory %v of the GPU, want %d, %d, %d", got, count, compute, memory)
			}
			return ""
		})
	}
	totals(15, 70, 81559-10<<10)
	// 60 % fit beside 30 for HAMi and for the node, and are HAMi's to count.
	mine := h.pod("mine", sample)
	delete(mine.Spec.Containers[0].Resources.Limits, memoryResource)
	delete(mine.Spec.Containers[0].Resources.Requests, memoryResource)
	r.create(t, mine)
	chosen := func(a map[string]string) {
		a[apinames.HAMiAllocation] = fmt.Sprintf(`[[{"uuid":%q,"compute":60,"vRam":%d}]]`, gpu, 81559-10<<10)
	}
	h.decideAndBind(t, "mine", sample, chosen)
	r.waitReady(t, "mine", waitStart)
	r.hasShares(t, "mine", "ubuntu", 0, allocation.Share{UUID: gpu, VCore: 60, MemoryMiB: 81559 - 10<<10})
	totals(15, 70, 81559-10<<10)
	r.remove(t, "other")
	totals(16, 100, 81559)
	r.remove(t, "mine")
}

// hamiLocks: a lock goes when its pod is gone, and stays where another plugin,
// or no component, is to release it.
func hamiLocks(t *testing.T, r *rig, locks *lockLog) {
	h := r.replay(t, hamirecord.V26)
	sample := h.Pod(t, "sample-pod")
	value, err := h.lock(t.Context(), "deleted-long-ago", sample)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	gone := locks.waitGone(t, value)
	t.Logf("the lock of a pod that is gone was released after %.1f s", gone.Sub(begin).Seconds())

	r.run(t, r.pod("other-maker", box{}))
	if _, err := h.lock(t.Context(), "other-maker", sample); err != nil {
		t.Fatal(err)
	}
	// That it stays can only be seen by waiting for a while.
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); pause(t, 200*time.Millisecond) {
		if r.node(t).Annotations[apinames.HAMiLock] == "" {
			t.Fatal("the lock of another plugin's pod is gone")
		}
	}
	r.remove(t, "other-maker")
	eventually(t, 40*time.Second, func() string { return r.node(t).Annotations[apinames.HAMiLock] })
}

// hamiClosed: nothing is offered to HAMi while no kubelet could take it. A plugin that leaves for
// good leaves one annotation that HAMi reads, closed, and does without it when it comes again.
func hamiClosed(t *testing.T, r *rig, locks *lockLog) {
	r.waitHealthy(t, 8)
	if err := r.plugin.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitHealthy(t, 0)
	// As docs/hami.md has it for a node that goes back to HAMi.
	if _, err := r.Kubectl(t.Context(), "annotate", "node", r.Node(), apinames.HAMiGPUs+"-"); err != nil {
		t.Fatal(err)
	}
	for key := range r.node(t).Annotations {
		if strings.HasPrefix(key, "metax-tech.com/") || strings.HasPrefix(key, "hami.io/") {
			t.Errorf("a plugin that has left leaves %s on the Node", key)
		}
	}
	t.Logf("open again %s after the start of the plugin, registration included", func() time.Duration {
		begin := time.Now()
		r.plugin.again(t)
		r.waitHealthy(t, 8)
		return time.Since(begin).Round(time.Millisecond)
	}())
	h := r.replay(t, hamirecord.V210)
	p := h.Pod(t, "mi")
	h.schedule(t, "returned", p, locks)
	r.waitReady(t, "returned", waitStart)
	r.hasShares(t, "returned", "a", 0, recordedShares(t, p)["a"]...)
	r.remove(t, "returned")
	r.configure(t, strings.Replace(hamiConfig, "mode: sgpu", "mode: native", 1))
	r.waitHealthy(t, -1)
	r.configure(t, hamiConfig)
	r.waitHealthy(t, 8)
	r.configure(t, strings.Replace(hamiConfig, "enabled: true", "enabled: false", 1))
	r.waitHealthy(t, -1)
}
