//go:build e2e && linux

package devices

import "testing"

// TestNothingIsLeftOfGonePods: the node does not gather CDI specs and records of whole GPUs and
// HCAs. Nothing happens on it after the pod's end: the kubelet's checkpoint, which it writes
// at the next allocation only, names the pod all the while.
func TestNothingIsLeftOfGonePods(t *testing.T) {
	r := dgx(t)
	r.run(t, r.pod("stays", box{gpus: 1, hcas: 1}))
	r.run(t, r.pod("gone", box{gpus: 1, hcas: 1}))
	stays, gone, uid := r.bindings(t)["stays/app"], r.bindings(t)["gone/app"], string(r.getPod(t, "gone").UID)
	if len(stays) != 2 || len(gone) != 2 {
		t.Fatalf("the pods have %d and %d records, one for each resource is right", len(stays), len(gone))
	}
	r.remove(t, "gone")
	took := eventually(t, func() string {
		left := map[string]bool{}
		for _, rec := range r.records(t) {
			left[rec.Device] = true
		}
		for name := range r.specs(t) {
			left[name] = true
		}
		for _, b := range gone {
			if left[b.Device] || left[b.spec()] {
				return b.spec() + " or its record is still there"
			}
		}
		for _, b := range stays {
			if !left[b.Device] || !left[b.spec()] {
				t.Fatalf("%s or its record is gone, and its pod is not", b.spec())
			}
		}
		return ""
	})
	if len(r.checkpointNames(t)[uid]) == 0 {
		t.Error("the kubelet's checkpoint does not name the pod: something has been allocated meanwhile")
	}
	t.Logf("collected %.0f s after the pod went", took.Seconds())
}
