//go:build e2e && linux

package devices

import (
	"testing"
)

// dgx is the rig that most tests share.
func dgx(t *testing.T) *rig { return sharedRig(t, options{name: "dgx"}) }

// TestPodSeesExactlyItsDevices: four GPUs and four HCAs can be opened, by their
// node in /dev, by the host's node and by one that the container makes. None of
// the others can, not even from a hostPath.
func TestPodSeesExactlyItsDevices(t *testing.T) {
	r := dgx(t)
	r.run(t, r.pod("exact", box{gpus: 4, hcas: 4}))
	s := r.has(t, "exact", "app", 4, 4)
	if s.Env["NVIDIA_VISIBLE_DEVICES"] != "void" {
		t.Errorf("NVIDIA_VISIBLE_DEVICES is %q", s.Env["NVIDIA_VISIBLE_DEVICES"])
	}
}
