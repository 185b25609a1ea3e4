package resource_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/state"
)

func TestPreferGPUs(t *testing.T) {
	pairs := machineWith(6)
	for i := range 6 {
		pairs.GPUs[i].NVLinks = []machine.NVLink{{Peer: pairs.GPUs[i^1].PCI, Links: 4}}
	}
	mig := cut(cut(machineWith(3), 0, "1g.10gb", 3), 1, "1g.10gb", 2)
	all := []string{"GPU-5", "GPU-4", "GPU-3", "GPU-2", "GPU-1", "GPU-0"}
	instances := []string{"MIG-0-0", "MIG-0-1", "MIG-0-2", "MIG-1-0", "MIG-1-1"}
	for _, test := range []struct {
		name            string
		machine         *machine.Machine
		strategy        config.MIGStrategy
		steer           quota.Selector
		available, must []string
		size            int
		want            []string
		fails           bool
	}{
		{name: "a pair", machine: pairs, available: []string{"GPU-5", "GPU-3", "GPU-2", "GPU-0"}, size: 2, want: []string{"GPU-2", "GPU-3"}},
		{name: "one that breaks no pair", machine: pairs, available: []string{"GPU-0", "GPU-1", "GPU-5"}, size: 1, want: []string{"GPU-5"}},
		{name: "with its peer", machine: pairs, available: all, must: []string{"GPU-4"}, size: 2, want: []string{"GPU-4", "GPU-5"}},
		{name: "what has gone is not chosen", machine: pairs, available: []string{"GPU-9", "GPU-0", "GPU-5"}, size: 1, want: []string{"GPU-0"}},
		{name: "only these", machine: pairs, steer: quota.Selector{Use: []string{"GPU-1", "GPU-4", "GPU-5"}}, available: all, size: 2, want: []string{"GPU-4", "GPU-5"}},
		{name: "not these", machine: pairs, steer: quota.Selector{Avoid: []string{"GPU-0", "GPU-2"}}, available: all, size: 2, want: []string{"GPU-4", "GPU-5"}},
		{name: "these first, if they do not suffice", machine: pairs, steer: quota.Selector{Use: []string{"GPU-3"}}, available: all, size: 2, want: []string{"GPU-2", "GPU-3"}},
		{name: "what must be, whatever is wanted", machine: pairs, steer: quota.Selector{Use: []string{"GPU-3"}}, available: all, must: []string{"GPU-0"}, size: 1, want: []string{"GPU-0"}},
		{name: "MIG devices from the GPU with the fewest", machine: mig, strategy: config.MIGMixed, available: instances, size: 3, want: []string{"MIG-1-0", "MIG-1-1", "MIG-0-0"}},
		{name: "MIG devices of a GPU", machine: mig, strategy: config.MIGMixed, steer: quota.Selector{Use: []string{"GPU-0"}}, available: instances, size: 1, want: []string{"MIG-0-0"}},
		{name: "a MIG device by name", machine: mig, strategy: config.MIGMixed, steer: quota.Selector{Use: []string{"MIG-0-2"}}, available: instances, size: 1, want: []string{"MIG-0-2"}},
		{name: "a MIG device and one more", machine: mig, strategy: config.MIGMixed, available: instances, must: []string{"MIG-0-2"}, size: 2, want: []string{"MIG-0-2", "MIG-1-0"}},
		{name: "more than there is", machine: pairs, available: []string{"GPU-0"}, size: 2, fails: true},
		{name: "more than is left", machine: pairs, available: []string{"GPU-0", "GPU-9"}, size: 2, fails: true},
		{name: "none", machine: pairs, available: all, size: 0, fails: true},
		{name: "a stranger", machine: pairs, available: []string{"GPU-0", "GPU-9"}, must: []string{"GPU-9"}, size: 1, fails: true},
		{name: "twice", machine: pairs, available: []string{"GPU-0", "GPU-0"}, size: 2, fails: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newGPUNode(t, test.machine)
			name := "nvidia.com/gpu"
			if test.strategy != "" {
				n.config.MIGStrategy = test.strategy
				name = "nvidia.com/mig-1g.10gb"
			}
			got, err := resource.NewGPUs(n.options(t, name), n.inventory()).PreferFor(test.steer, test.available, test.must, test.size)
			if (err != nil) != test.fails {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("chosen (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPreferLeavesOutWhatContainersHave although the kubelet offers it, as long
// as there is enough else.
func TestPreferLeavesOutWhatContainersHave(t *testing.T) {
	n := newGPUNode(t, machineWith(4))
	o := n.options(t, "nvidia.com/gpu")
	o.State = state.New(t, n.dir, n.inventory(),
		state.Entry(cdi.GPU, o.Name, "GPU-0", ""), state.Entry(cdi.GPU, o.Name, "GPU-1", ""))
	o.State.Registered() // A kubelet that has just started may have forgotten both.
	r := resource.NewGPUs(o, n.inventory())
	all := []string{"GPU-0", "GPU-1", "GPU-2", "GPU-3"}
	for size, want := range map[int][]string{2: all[2:], 4: all} {
		got, err := r.Prefer(all, nil, size)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d devices: %v %v, want %v", size, got, err, want)
		}
	}
}
