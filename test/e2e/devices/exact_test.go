//go:build e2e && linux

package devices

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dgx is the rig that most tests share.
func dgx(t *testing.T) *rig {
	return sharedRig(t, options{name: "dgx", gates: map[string]bool{"ResourceHealthStatus": true}})
}

// TestPodSeesExactlyItsDevices: four GPUs and four HCAs can be opened, by their
// node in /dev, by the host's node and by one that the container makes. None of
// the others can, not even from a hostPath. A container that asked for nothing
// can open nothing.
func TestPodSeesExactlyItsDevices(t *testing.T) {
	r := dgx(t)
	p := r.pod("exact", box{gpus: 4, hcas: 4})
	p.Spec.Containers = append(p.Spec.Containers, box{name: "bystander"}.container(), box{name: "rdma", hcas: 1}.container())
	r.run(t, p)

	s := r.has(t, "exact", "app", 4, 4)
	if s.Env["NVIDIA_VISIBLE_DEVICES"] != "void" {
		t.Errorf("NVIDIA_VISIBLE_DEVICES is %q", s.Env["NVIDIA_VISIBLE_DEVICES"])
	}
	if d := s.Devices; d.Namespace != namespace || d.Pod != "exact" || d.Container != "app" {
		t.Errorf("the devices file is of %s/%s/%s", d.Namespace, d.Pod, d.Container)
	}
	r.has(t, "exact", "rdma", 0, 1)
	if b := r.sees(t, "exact", "bystander"); len(b.GPUs)+len(b.HCAs) > 0 || b.CM || b.Devices != nil {
		t.Errorf("a container that asked for nothing sees %+v", b)
	}
	// What it saw at its start holds while it runs, also for exec.
	for _, container := range []string{"app", "rdma", "bystander"} {
		start := r.sees(t, "exact", container)
		now, err := interpret(r.ask(t, "exact", container), r.machine(t))
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([][]string{start.GPUs, start.HCAs}, [][]string{now.GPUs, now.HCAs}); diff != "" {
			t.Errorf("%s: exec sees others (-start +exec):\n%s", container, diff)
		}
	}
}
