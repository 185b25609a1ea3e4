package devicestate

import (
	"slices"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	testkubelet "github.com/heddle-dev/heddle/test/kubelet"
)

// A container that the kubelet's CPU manager gave processors of its own gets a share
// near them, whatever its device IDs name. GPUs 0 to 3 of this machine are of NUMA
// node 0, as are processors 0-55 and 112-167.
func TestSharesFollowTheProcessors(t *testing.T) {
	require := func(c *config.NodeConfig) { c.SGPU.NUMA = config.NUMARequire }
	for _, tt := range []struct {
		name   string
		change func(*config.NodeConfig)
		cpus   []int64
		ask    string
		// by is the GPU that heddle-scheduler chose, less than 0 for none.
		by       int
		gpu      int
		warning  string
		rejected string
	}{
		{name: "no processors: the fullest", ask: "10/1", by: -1, gpu: 0},
		{name: "processors of the other node", cpus: []int64{60}, ask: "10/1", by: -1, gpu: 4},
		{name: "processors of both nodes", cpus: []int64{1, 223}, ask: "10/1", by: -1, gpu: 0},
		{name: "a processor of no known node", cpus: []int64{999}, ask: "10/1", by: -1, gpu: 0},
		{
			name: "no room near", cpus: []int64{60}, ask: "60/1", by: -1, gpu: 0,
			change:  func(c *config.NodeConfig) { c.SGPU.GPUs = []config.GPURef{"0", "4"} },
			warning: "container main has a share of GPU 0, which is of NUMA node 0, and the container's processors are of 1",
		},
		{
			name: "a scheduler chose", cpus: []int64{60}, ask: "10/1", by: 1, gpu: 1,
			warning: "container main has a share of GPU 1, which is of NUMA node 0, and the container's processors are of 1",
		},
		{name: "near is required, and there", change: require, cpus: []int64{60}, ask: "10/1", by: -1, gpu: 4},
		{
			name: "near is required, and full", cpus: []int64{60}, ask: "60/1", by: -1,
			change: func(c *config.NodeConfig) {
				require(c)
				c.SGPU.GPUs = []config.GPURef{"0", "4"}
			},
			rejected: "only other NUMA nodes than that of its processors, 1, have room, and sgpu.numa is require",
		},
		{
			name: "near is required, and a scheduler chose", change: require, cpus: []int64{60}, ask: "10/1", by: 1,
			rejected: "heddle-scheduler chose GPU 1, which is of NUMA node 0, and the container's processors are of 1",
		},
		{name: "near is required of processors that are shared", change: require, ask: "10/1", by: 1, gpu: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t)
			if tt.change != nil {
				r.reconfigure(tt.change)
			}
			used := map[int]string{0: "50/1", 4: "30/1"}
			if tt.ask == "60/1" {
				used = map[int]string{0: "30/1", 4: "50/1"}
			}
			for gpu, text := range used {
				chosen := r.chosen("gpu-1", map[string][]allocation.Share{"main": {r.share(gpu, text)}})
				r.wants("before-"+text, chosen, sharer("main", text))
				want := asks{slots: {r.slot(gpu, 0)}}
				r.allocate(pod("before-"+text), "main", want)
				r.start(want)
			}
			var annotations map[string]string
			if tt.by >= 0 {
				annotations = r.chosen("gpu-1", map[string][]allocation.Share{"main": {r.share(tt.by, tt.ask)}})
			}
			r.wants("a", annotations, sharer("main", tt.ask))
			want := asks{slots: {r.slot(0, 8)}}
			r.allocate(pod("a", testkubelet.Container{Name: "main", CPUs: tt.cpus}), "main", want)
			r.specs.takeEvents()
			err := r.prepareShares(want)
			events := r.specs.takeEvents()
			if tt.rejected != "" {
				if err == nil || !strings.Contains(err.Error(), tt.rejected) {
					t.Fatalf("error %v\nwant  %s", err, tt.rejected)
				}
				if all := r.Rejections(); len(all) != 1 || all[0].Kind != allocate.RejectedNUMA {
					t.Errorf("rejected: %+v", all)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := r.gpusOf("a", "main"); !slices.Equal(got, []int{tt.gpu}) {
				t.Errorf("GPUs %v, want %d", got, tt.gpu)
			}
			switch {
			case tt.warning == "" && len(events) > 0:
				t.Errorf("events %q", events)
			case tt.warning != "" && (len(events) != 1 || !strings.Contains(events[0], wellknown.EventSharesOnOtherNUMANode+": "+tt.warning)):
				t.Errorf("events %q", events)
			}
			r.nothingOvercommitted()
		})
	}
}
