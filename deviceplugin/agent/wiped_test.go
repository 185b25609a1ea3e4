package agent

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// The state and the CDI specs of a node are removed while a container runs. No
// other pod gets the GPU that its device ID names, and its annotation stays.
func TestWipedNode(t *testing.T) {
	r, c := sharer(t, "gpus: [0]")
	r.run()
	r.list(slots, 16, 0)
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod's annotation", func() bool { return len(c.boundOf("a")) == 1 })
	r.stop()
	if err := errors.Join(os.RemoveAll(r.options.StateDir), os.RemoveAll(r.options.CDIDir)); err != nil {
		t.Fatal(err)
	}
	r.api.Mu.Lock()
	r.api.Unlisted = true
	r.api.Mu.Unlock()
	r.again(t)
	r.list(slots, 16, 0)
	if err := r.consumer("b", "30/4", nil); err == nil || !strings.Contains(err.Error(), "kept for container main of default/a") {
		t.Errorf("before the API server lists the pods: %v", err)
	}
	r.api.Mu.Lock()
	r.api.Unlisted = false
	r.api.Mu.Unlock()
	until(t, "the list of pods", func() bool {
		_, _, known := r.API.Pods()
		return known
	})

	if err := r.consumer("late", "30/4", nil); err == nil || !strings.Contains(err.Error(), "kept for container main of default/a") {
		t.Errorf("error %v", err)
	}
	r.api.Wait(t, "the Event", func() bool {
		return has(r.api.notices, "SGPUDrift container main of default/a has a share without a checkpoint entry")
	})
	if got := c.boundOf("a"); len(got) != 1 {
		t.Errorf("the annotation was changed: %q", got)
	}
	if p := r.api.Pod("a"); p.Annotations[wellknown.SGPUBound] == "" {
		t.Errorf("pod %+v", p)
	}
	if got := r.drifts("unrecorded"); got != 1 {
		t.Errorf("%v drifts", got)
	}
	for _, b := range r.report().Bindings {
		if b.Unrecorded != (b.Pod == "a") {
			t.Errorf("binding %+v", b)
		}
	}
	// Its GPU is free when its pod is gone, and only then.
	if _, err := r.kubelet.StartContainer(t.Context(), "default", "b", "main"); err == nil {
		t.Error("another pod starts although the pod is there")
	}
	r.kubelet.Delete("default", "a")
	r.passed.Add(int64(time.Minute)) // As long as a kubelet may start.
	until(t, "the other pod", func() bool {
		_, err := r.kubelet.StartContainer(t.Context(), "default", "b", "main")
		return err == nil
	})
}
