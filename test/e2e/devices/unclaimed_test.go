//go:build e2e && linux

package devices

import "testing"

// TestNothingIsLeftOfGonePods: the node does not gather CDI specs and records.
// It looks for those of a pod that an earlier test had, because they are kept
// for a minute: a kubelet that has just started may not know all its pods.
func TestNothingIsLeftOfGonePods(t *testing.T) {
	r := dgx(t)
	if len(once.gone) == 0 {
		r.run(t, r.pod("gone", box{gpus: 1, hcas: 1}))
		once.gone = r.bindings(t)["gone/app"]
		r.remove(t, "gone")
	}
	if len(once.gone) != 2 {
		t.Fatalf("the pod had %d records", len(once.gone))
	}
	// The kubelet's checkpoint forgets a pod at the next allocation only.
	r.run(t, r.pod("next", box{gpus: 1, hcas: 1}))
	next := r.bindings(t)["next/app"]
	eventually(t, waitCollected, func() string {
		left := map[string]bool{}
		for _, rec := range r.records(t) {
			left[rec.Device] = true
		}
		for name := range r.specs(t) {
			left[name] = true
		}
		for _, b := range once.gone {
			if left[b.Device] || left[b.spec()] {
				return b.spec() + " or its record is still there"
			}
		}
		for _, b := range next {
			if !left[b.Device] || !left[b.spec()] {
				t.Fatalf("%s or its record is gone, and its pod is not", b.spec())
			}
		}
		return ""
	})
}
