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
	r.waitRestart(t, mirror, 1)
	again := r.has(t, mirror, "app", 2, 2)
	if diff := cmp.Diff([][]string{s.GPUs, s.HCAs}, [][]string{again.GPUs, again.HCAs}); diff != "" {
		t.Errorf("devices after a restart (-before +after):\n%s", diff)
	}
}
