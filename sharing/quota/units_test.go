package quota_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// hamiNames is a node that serves the pods of HAMi's NVIDIA backend as they are.
func hamiNames(tb testing.TB) *config.NodeConfig {
	tb.Helper()
	c := config.Default()
	c.Resources = config.Resources{
		SGPU: "nvidia.com/gpu", VCore: "nvidia.com/gpucores", VMemory: "nvidia.com/gpumem",
		VMemoryUnit: config.MiB, VMemoryPercentage: "nvidia.com/gpumem-percentage",
	}
	c.SGPU.Defaults.VCore = 0
	if err := c.Complete(); err != nil {
		tb.Fatal(err)
	}
	return &c
}

// TestHAMiUnits: limits of HAMi's NVIDIA backend, as an API server writes them.
func TestHAMiUnits(t *testing.T) {
	for _, tt := range []struct {
		limits string
		want   quota.Request
	}{
		{"gpu=1 gpucores=30 gpumem=4096", quota.Request{GPUs: 1, VCore: 30, MemoryMiB: 4096}},
		{"gpu=1 gpucores=30 gpumem=3k", quota.Request{GPUs: 1, VCore: 30, MemoryMiB: 3000}},
		{"gpu=1 gpucores=30 gpumem=1M", quota.Request{GPUs: 1, VCore: 30, MemoryMiB: 1_000_000}},
		{"gpu=1 gpucores=30 gpumem=4e3", quota.Request{GPUs: 1, VCore: 30, MemoryMiB: 4000}},
		{"gpu=1 gpucores=30 gpumem=1.5Gi", quota.Request{GPUs: 1, VCore: 30, MemoryMiB: 1536}},
		{"gpu=2 gpumem=3000", quota.Request{GPUs: 2, MemoryMiB: 3000}},
		{"gpu=1 gpucores=0 gpumem=3000", quota.Request{GPUs: 1, MemoryMiB: 3000}},
		{"gpu=1 gpucores=100 gpumem=3000", quota.Request{GPUs: 1, VCore: 100, MemoryMiB: 3000}},
		{"gpu=1 gpucores=30 gpumem-percentage=50", quota.Request{GPUs: 1, VCore: 30, MemoryPercent: 50}},
		{"gpu=1 gpucores=30 gpumem-percentage=100", quota.Request{GPUs: 1, VCore: 30}},
		{"gpu=1 gpumem=3000 gpumem-percentage=50", quota.Request{GPUs: 1, MemoryMiB: 3000}},
		{"gpu=1 gpumem=0 gpumem-percentage=50", quota.Request{GPUs: 1, MemoryPercent: 50}},
		{"gpu=1", quota.Request{GPUs: 1}},
	} {
		tt.want.Policy = quota.FixedShare
		list := limits(t, tt.limits)
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		list = nil
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		got, err := quota.ParseRequest(list, nil, hamiNames(t))
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", tt.limits, err, diff)
		}
	}
}

func TestBadHAMiUnits(t *testing.T) {
	for limit, want := range map[string]string{
		"gpumem=3000":                   "nvidia.com/gpumem: 3k without nvidia.com/gpu, the number of GPUs to share",
		"gpumem-percentage=50":          "nvidia.com/gpumem-percentage: 50 without nvidia.com/gpu, the number of GPUs to share",
		"gpu=1 gpumem=-1":               "nvidia.com/gpumem: invalid amount -1; without nvidia.com/gpumem it is the GPU's whole memory",
		"gpu=1 gpumem=0.5":              "nvidia.com/gpumem: 500m is not a whole number of MiB",
		"gpu=1 gpumem=80G":              "nvidia.com/gpumem: 80G MiB is more than any GPU has; a plain number is MiB",
		"gpu=1 gpumem=7Ei":              "nvidia.com/gpumem: 7Ei is more than any GPU has",
		"gpu=1 gpumem-percentage=0":     "nvidia.com/gpumem-percentage: 0 is not 1 to 100 percent of a GPU; without nvidia.com/gpumem-percentage it is the GPU's whole memory",
		"gpu=1 gpumem-percentage=150":   "nvidia.com/gpumem-percentage: 150 is not 1 to 100 percent of a GPU; a container has memory of each of its GPUs",
		"gpu=1 gpucores=-1":             "nvidia.com/gpucores: -1 is not 1 to 100 percent of a GPU; without nvidia.com/gpucores it is 0",
		"gpu=1 gpucores=120 gpumem=4Ki": "nvidia.com/gpucores: 120 is not 1 to 100 percent of a GPU; for more GPUs raise nvidia.com/gpu",
	} {
		if got, err := quota.ParseRequest(limits(t, limit), nil, hamiNames(t)); err == nil || err.Error() != want {
			t.Errorf("%s: %+v, error %v\nwant %s", limit, got, err, want)
		}
	}
}

// TestPercentOfEachGPU: a percentage is of the GPU that is chosen, rounded down as
// HAMi does, and two halves fit where a GPU has an odd number of MiB.
func TestPercentOfEachGPU(t *testing.T) {
	all := gpus(t, "0/0", "0/0")
	all[0].MemoryMiB, all[1].MemoryMiB = 81559, 143771
	half := quota.Request{GPUs: 2, MemoryPercent: 50, Policy: quota.FixedShare}
	for i, want := range []int64{40779, 71885} {
		if got := all[i].Share(&half).MemoryMiB; got != want {
			t.Errorf("half of %d MiB is %d, want %d", all[i].MemoryMiB, got, want)
		}
		all[i].Charge(quota.Load{MemoryMiB: want, Consumers: 1})
	}
	if why := quota.Explain(all, &half); why != "" {
		t.Errorf("a second half: %s", why)
	}
	all[0].Charge(quota.Load{MemoryMiB: 2, Consumers: 1})
	const want = "2 GPUs are requested and 1 of 2 can give 50 % of memory. GPU 0: 39.8 GiB of 79.6 left; needs 39.9"
	if why := quota.Explain(all, &half); why != want {
		t.Errorf("%q, want %q", why, want)
	}
	if got := (&quota.Request{MemoryPercent: 1}).MemoryOf(50); got != 1 {
		t.Errorf("a percent of 50 MiB is %d", got)
	}
}

// TestDefaults: what a container has that asks for the share alone, as the replicas
// of NVIDIA's plugin are asked for.
func TestDefaults(t *testing.T) {
	c := node(t)
	c.SGPU.Defaults = config.ShareDefaults{VCore: 25, VMemoryPercentage: 25, Policy: quota.BurstShare}
	for limit, want := range map[string]quota.Request{
		"sgpu=1":           {GPUs: 1, VCore: 25, MemoryPercent: 25, Policy: quota.BurstShare},
		"sgpu=1 vcore=50":  {GPUs: 1, VCore: 50, MemoryPercent: 25, Policy: quota.BurstShare},
		"sgpu=1 vmemory=4": {GPUs: 1, VCore: 25, MemoryMiB: 4096, Policy: quota.BurstShare},
	} {
		got, err := quota.ParseRequest(limits(t, limit), nil, c)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", limit, err, diff)
		}
	}
	c.SGPU.Defaults.Policy = quota.BestEffort
	if got, err := quota.ParseRequest(limits(t, "sgpu=1"), nil, c); got.VCore != 0 || err != nil {
		t.Errorf("best-effort without vcore: %+v, error %v", got, err)
	}
	amount := node(t)
	amount.SGPU.Defaults.VMemory = 5
	for unit, want := range map[config.MemoryUnit]int64{config.GiB: 5120, config.MiB: 5} {
		amount.Resources.VMemoryUnit = unit
		got, err := quota.ParseRequest(limits(t, "sgpu=1"), nil, amount)
		if got.MemoryMiB != want || got.MemoryPercent != 0 || err != nil {
			t.Errorf("a default of 5 %s is %+v, error %v", unit, got, err)
		}
	}
	amount.Resources.VMemoryUnit = config.MiB
	if got, err := quota.ParseRequest(limits(t, "sgpu=1 vmemory=7"), nil, amount); got.MemoryMiB != 7 || err != nil {
		t.Errorf("the pod's own amount beside a default is %+v, error %v", got, err)
	}
	theirs := hamiNames(t)
	theirs.SGPU.Defaults.VMemory = 3000
	for limit, want := range map[string]quota.Request{
		"gpu=1 gpumem=0":              {GPUs: 1, MemoryMiB: 3000, Policy: quota.FixedShare},
		"gpu=1 gpumem-percentage=50":  {GPUs: 1, MemoryPercent: 50, Policy: quota.FixedShare},
		"gpu=1 gpumem-percentage=100": {GPUs: 1, Policy: quota.FixedShare},
	} {
		got, err := quota.ParseRequest(limits(t, limit), nil, theirs)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", limit, err, diff)
		}
	}
	_, err := quota.ParseRequest(limits(t, "sgpu=1 vmemory=0"), nil, node(t))
	if err == nil || !strings.Contains(err.Error(), "the GPU's whole memory") {
		t.Errorf("vmemory: 0 is accepted: %v", err)
	}
}
