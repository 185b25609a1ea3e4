//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// TestMigration: a node with NVIDIA's device plugin and a running pod is given to heddle,
// with what `heddle config convert` makes of that plugin's configuration, and back. The
// manifest is never changed, and running containers are never touched.
func TestMigration(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		// devices are how many the Node has, with either plugin.
		devices  int
		manifest box
	}{
		{"whole", "version: v1\nflags: {migStrategy: none}\n", 8, box{gpus: 2}},
		{"slices", "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n", 32, box{gpus: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, options{name: "from-" + tt.name, held: true})
			theirs := r.nvidia(t, tt.file)
			r.serves(t, theirs, tt.devices)
			r.run(t, r.pod("before", tt.manifest))
			before := r.lives(t, "before")

			if err := theirs.stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := r.writeConfig(r.converted(t, tt.file)); err != nil {
				t.Fatal(err)
			}
			r.plugin.again(t)
			r.waitAllocatable(t, gpuResource, int64(tt.devices))
			r.untouched(t, before)
			r.run(t, r.pod("after", tt.manifest))
			after := r.lives(t, "before", "after")
			if all := slices.Concat(after["before"].GPUs, after["after"].GPUs); !disjoint(all) || len(all) != 2*tt.manifest.gpus {
				t.Errorf("the pods have %+v", after)
			}
			r.startsOver(t, "before")
			after = r.lives(t, "before", "after")

			if err := r.plugin.stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.serves(t, theirs, tt.devices)
			r.untouched(t, after)
			r.run(t, r.pod("again", tt.manifest))
			if got := r.lives(t, "again")["again"]; len(got.GPUs) != tt.manifest.gpus {
				t.Errorf("the pod of the other plugin has GPUs %v", got.GPUs)
			}
			r.startsOver(t, "after")
		})
	}
}

// startsOver proves that a container which ends is started again with the devices that it
// had, also while another plugin serves them than the one that gave them.
func (r *rig) startsOver(t *testing.T, pod string) {
	t.Helper()
	before := r.lives(t, pod)
	r.waitRestart(t, pod, r.crash(t, pod)+1)
	r.sameDevices(t, before)
}

// serves starts another plugin and waits until the kubelet has count healthy devices.
// The Node shows those of a plugin that has ended for a moment more.
func (r *rig) serves(t *testing.T, plugin *process, want int) {
	t.Helper()
	if err := plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		all, err := podresources.NewPodResourcesListerClient(r.conn).GetAllocatableResources(
			t.Context(), &podresources.AllocatableResourcesRequest{})
		got := 0
		for _, d := range all.GetDevices() {
			if d.GetResourceName() == gpuResource {
				got += len(d.GetDeviceIds())
			}
		}
		if err != nil || got != want {
			return fmt.Sprintf("the kubelet has %d of %s, want %d: %v", got, gpuResource, want, err)
		}
		return ""
	})
	r.waitAllocatable(t, gpuResource, int64(want))
}

// converted is what `heddle config convert` prints.
func (r *rig) converted(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program(t, "heddle"), "config", "convert", "--from", "nvidia", file)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
