//go:build e2e && linux

package devices

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// disjoint reports whether no device is in two lists.
func disjoint(lists ...[]string) bool {
	all := slices.Sorted(slices.Values(slices.Concat(lists...)))
	return len(slices.Compact(slices.Clone(all))) == len(all)
}

// TestInitContainers: an init container's devices are taken over by the app
// container. With the same request both hold the same IDs, and the kubelet
// cannot distinguish calls of PreStartContainer.
func TestInitContainers(t *testing.T) {
	r := dgx(t)
	once := []string{"once"}
	t.Run("same request", func(t *testing.T) {
		r.run(t, r.pod("init-same", box{gpus: 4, hcas: 4}, box{name: "before", gpus: 4, hcas: 4, args: once}))
		before, app := r.has(t, "init-same", "before", 4, 4), r.has(t, "init-same", "app", 4, 4)
		if diff := cmp.Diff(before.GPUs, app.GPUs); diff != "" {
			t.Errorf("GPUs (-init +app):\n%s", diff)
		}
		if before.Devices.Container != "before" || app.Devices.Container != "app" {
			t.Errorf("devices files are of %q and %q", before.Devices.Container, app.Devices.Container)
		}
	})
	t.Run("another request", func(t *testing.T) {
		r.run(t, r.pod("init-other", box{gpus: 4, hcas: 4},
			box{name: "small", gpus: 1, hcas: 2, args: once}, box{name: "rdma", hcas: 1, args: once},
			box{name: "none", args: once}, box{name: "large", gpus: 8, hcas: 8, args: once}))
		r.has(t, "init-other", "small", 1, 2)
		r.has(t, "init-other", "rdma", 0, 1)
		r.has(t, "init-other", "large", 8, 8)
		if none := r.sees(t, "init-other", "none"); len(none.GPUs)+len(none.HCAs) > 0 {
			t.Errorf("an init container that asked for nothing sees %+v", none)
		}
		r.has(t, "init-other", "app", 4, 4)
	})
}

// TestStaticPod: the kubelet's UID of a static pod is not the API server's.
func TestStaticPod(t *testing.T) {
	r := dgx(t)
	mirror := r.static(t, r.pod("static", box{gpus: 2, hcas: 2}))
	r.waitReady(t, mirror)
	s := r.has(t, mirror, "app", 2, 2)
	// Hints need the pod's own words, which are found by the mirror.
	if s.Env["NCCL_IB_HCA"] == "" || s.Devices.Pod != mirror {
		t.Errorf("NCCL_IB_HCA is %q, the devices file is of %q", s.Env["NCCL_IB_HCA"], s.Devices.Pod)
	}
	r.stopContainer(t, mirror, "app")
	r.waitRestart(t, mirror, "app", 1)
	again := r.has(t, mirror, "app", 2, 2)
	if diff := cmp.Diff([][]string{s.GPUs, s.HCAs}, [][]string{again.GPUs, again.HCAs}); diff != "" {
		t.Errorf("devices after a restart (-before +after):\n%s", diff)
	}
}
