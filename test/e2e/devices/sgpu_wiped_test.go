//go:build e2e && linux

package devices

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	apinames "github.com/heddle-dev/heddle/api/wellknown"
)

// TestSGPUWiped: an administrator removes the plugin's state and all CDI specs while
// containers run. All that is left of what they have is their device IDs,
// and no other pod gets their GPUs until they are gone. A container that starts
// again has a checkpoint entry again; one that runs beside it keeps its GPU.
func TestSGPUWiped(t *testing.T) {
	r := sgpu(t)
	const gpus = 2
	r.configure(t, sharedGPUs+"sgpu: {gpus: [0, 1], refusedFor: 0s}\n")
	r.waitShares(t, gpus*16, gpus*100, gpus*79)
	r.waitAllocatable(t, gpuResource, 8-gpus, waitStart)
	r.run(t, besides(r.pod("stays", box{more: share(40, 8)}), box{name: "second", more: share(20, 4)}))
	app := r.hasShares(t, "stays", "app", 0, slice(40, 8))
	second := r.hasShares(t, "stays", "second", 0, slice(20, 4))
	r.run(t, r.pod("other", box{more: share(60, 4)}))
	r.hasShares(t, "other", "app", 0, slice(60, 4))
	annotation := r.getPod(t, "stays").Annotations[apinames.SGPUBound]

	r.plugin.kill(t)
	for _, dir := range []string{r.stateDir(), r.NodeDir("/run/cdi")} {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.plugin.again(t)
	r.waitShares(t, gpus*16, gpus*100, gpus*79)

	r.create(t, r.pod("late", box{more: share(30, 4)}))
	r.waitEvent(t, "late", "SGPURefused", "kept for container", waitStart)
	r.waitEvent(t, r.Node(), "SGPUDrift", "container second of default/stays has a share without a checkpoint entry", waitStart)
	if diff := cmp.Diff(annotation, r.getPod(t, "stays").Annotations[apinames.SGPUBound]); diff != "" {
		t.Errorf("the pod's annotation (-before +after):\n%s", diff)
	}
	// Until all have checkpoint entries again, r.count does not hold: the plugin closes
	// the GPU of a recovered container, and the Node's annotation counts nothing for it.
	r.unrecorded(t, "other/app", "stays/app", "stays/second")

	r.stopContainer(t, "stays", "app")
	r.waitRestart(t, "stays", "app", 1, waitStart)
	r.hasShares(t, "stays", "app", 0, app...)
	r.hasShares(t, "stays", "second", 0, second...)
	r.unrecorded(t, "other/app", "stays/second")
	r.stopContainer(t, "stays", "second")
	r.waitRestart(t, "stays", "second", 1, waitStart)
	r.hasShares(t, "stays", "second", 0, second...)
	r.unrecorded(t, "other/app")
	r.remove(t, "other")
	r.waitReady(t, "late", waitStart)
	r.count(t)
}

// unrecorded fails the test unless these containers, and no others, have shares
// and no checkpoint entry.
func (r *rig) unrecorded(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, b := range r.account(t).Bindings {
		if b.Unrecorded {
			got = append(got, key(b.Pod, b.Container))
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("containers with shares and no record (-want +got):\n%s", diff)
	}
}
