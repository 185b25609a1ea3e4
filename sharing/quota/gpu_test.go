package quota_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing/quota"
)

const gib = 1024

// take adds a consumer to a GPU, as the callers do that keep claims.
func take(c *quota.GPU, r *quota.Request) {
	claim := quota.Claim{Share: c.Share(r), Policy: r.Policy}
	claim.Mark(c)
	c.Charge(quota.Load{VCore: claim.Share.VCore, Consumers: 1, MemoryMiB: claim.Share.MemoryMiB})
}

func TestRejects(t *testing.T) {
	const fixed, burst, best = quota.FixedShare, quota.BurstShare, quota.BestEffort
	idle := quota.GPU{UUID: "GPU-3", Index: 3, MemoryMiB: 80 * gib, Slots: 4, NUMA: -1}
	with := func(edit func(*quota.GPU)) quota.GPU {
		c := idle
		edit(&c)
		return c
	}
	taken := func(rs ...quota.Request) quota.GPU {
		return with(func(c *quota.GPU) {
			for i := range rs {
				take(c, &rs[i])
			}
		})
	}
	request := func(vcore int, memory int64, p quota.Policy) quota.Request {
		return quota.Request{GPUs: 1, VCore: vcore, MemoryMiB: memory * gib, Policy: p}
	}
	small, alone := request(30, 4, fixed), request(100, 4, fixed)
	for _, test := range []struct {
		name string
		gpu  quota.GPU
		r    quota.Request
		want string
	}{
		{"idle", idle, small, ""},
		{"idle, alone", idle, alone, ""},
		{"idle, all of it", idle, request(100, 0, fixed), ""},
		{"room for one more", taken(small), request(70, 76, fixed), ""},
		{"no compute is requested", taken(request(99, 4, best)), request(0, 4, best), ""},
		{"memory", taken(request(30, 78, fixed)), small, "GPU 3: 2 GiB of 80 left; needs 4"},
		{"nearly enough memory", with(func(c *quota.GPU) { c.Consumers, c.UsedMiB = 1, 76*gib+1 }), small, "GPU 3: 3.9 GiB of 80 left; needs 4"},
		{
			"a GPU that is no round number", with(func(c *quota.GPU) { c.MemoryMiB, c.UsedMiB, c.Consumers = 81559, 80*gib-512, 1 }), small,
			"GPU 3: 0.1 GiB of 79.6 left; needs 4",
		},
		{"whole memory", taken(small), request(30, 0, fixed), "GPU 3: 76 GiB of 80 left; needs 80"},
		{"whole memory taken", taken(request(30, 0, fixed)), small, "GPU 3: 0 GiB of 80 left; needs 4"},
		{
			"room beyond its memory", with(func(c *quota.GPU) { c.RoomMiB, c.UsedMiB, c.Consumers = 120*gib, 80*gib, 2 }),
			request(30, 40, fixed), "",
		},
		{
			"no room beyond its memory", with(func(c *quota.GPU) { c.RoomMiB, c.UsedMiB, c.Consumers = 120*gib, 80*gib, 2 }),
			request(30, 41, fixed), "GPU 3: 40 GiB of 120 left; needs 41",
		},
		{
			"one consumer of more than its memory", with(func(c *quota.GPU) { c.RoomMiB = 120 * gib }),
			request(30, 81, fixed), "GPU 3: 80 GiB in all; needs 81",
		},
		{"compute", taken(request(60, 4, fixed)), request(60, 4, fixed), "GPU 3: 40 % of 100 left; needs 60"},
		{"larger than the GPU", taken(small), request(30, 200, fixed), "GPU 3: 80 GiB in all; needs 200"},
		{"alone among others", taken(small), alone, "GPU 3: 1 consumer; needs it idle"},
		{"another is alone", taken(alone), small, "GPU 3: a consumer has it exclusively"},
		{"another is alone, no compute is requested", taken(request(100, 4, best)), request(0, 4, best), "GPU 3: a consumer has it exclusively"},
		{"alone among many others", taken(small, small), alone, "GPU 3: 2 consumers; needs it idle"},
		{"policy", taken(small), request(30, 4, burst), "GPU 3: its consumers are fixed-share, not burst-share"},
		{"policy, alone", idle, request(100, 4, best), ""},
		{"slots", taken(small, small, small, request(1, 1, fixed)), request(1, 1, fixed), "GPU 3: all 4 slots are taken"},
		{"ill", with(func(c *quota.GPU) { c.Unhealthy = "XID 79: fallen off the bus" }), small, "GPU 3: XID 79: fallen off the bus"},
		{"use", idle, quota.Request{GPUs: 1, VCore: 1, MemoryMiB: 1, Policy: fixed, Selector: quota.Selector{Use: []string{"GPU-1", "GPU-3"}}}, ""},
		{"use others", idle, quota.Request{GPUs: 1, VCore: 1, MemoryMiB: 1, Policy: fixed, Selector: quota.Selector{Use: []string{"GPU-1"}}}, "GPU 3: the pod does not select it"},
		{
			"use and avoid", idle,
			quota.Request{GPUs: 1, VCore: 1, MemoryMiB: 1, Policy: fixed, Selector: quota.Selector{Use: []string{"GPU-3"}, Avoid: []string{"GPU-3"}}},
			"GPU 3: the pod avoids it",
		},
		{"given more than it has", with(func(c *quota.GPU) { c.Consumers, c.UsedMiB, c.VCore = 2, 90*gib, 20 }), small, "GPU 3: 0 GiB of 80 left; needs 4"},
		{"memory unknown", with(func(c *quota.GPU) { c.MemoryMiB = 0 }), request(30, 0, fixed), ""},
		{"memory unknown, an amount", with(func(c *quota.GPU) { c.MemoryMiB = 0 }), small, "GPU 3: 0 GiB in all; needs 4"},
		{"memory unknown, taken", with(func(c *quota.GPU) { c.MemoryMiB, c.Consumers = 0, 1 }), request(30, 0, fixed), "GPU 3: 1 consumer; needs it idle"},
	} {
		if got := test.gpu.Reject(&test.r); got.String() != test.want || got.None() != (test.want == "") {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func randomRequest(rng *rand.Rand) quota.Request {
	r := quota.Request{GPUs: 1, VCore: 1 + rng.IntN(60), MemoryMiB: int64(1+rng.IntN(24)) * 512, Policy: quota.FixedShare}
	switch rng.IntN(12) {
	case 0:
		r.VCore = 100
	case 1:
		r.MemoryMiB = 0
	case 2, 3:
		r.Policy = quota.BurstShare
	case 4:
		r.Policy, r.VCore = quota.BestEffort, 0
	case 5:
		r.Policy = quota.BestEffort
	}
	return r
}

func TestPublish(t *testing.T) {
	gpus := []quota.GPU{
		{
			UUID: "GPU-a", Index: 0, MemoryMiB: 80 * gib, Slots: 16, NUMA: 1, Zone: 2, VCore: 30, UsedMiB: 4 * gib, Consumers: 1,
			Policy: quota.BurstShare,
		},
		{UUID: "GPU-b", Index: 1, MemoryMiB: 80 * gib, Slots: 16, NUMA: -1, Unhealthy: "cordoned"},
		{UUID: "GPU-c", Index: 2, MemoryMiB: 80 * gib, Slots: 16, NUMA: 0, VCore: 100, UsedMiB: 80 * gib, Consumers: 1, Exclusive: true},
	}
	all, err := allocation.ParseNodeGPUs(quota.Publish(gpus).String())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(gpus, quota.Published(all)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
