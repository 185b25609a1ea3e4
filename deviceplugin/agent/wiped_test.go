package agent

import (
	"errors"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Somebody removed the state and the CDI specs of a node while a container ran.
// The annotation of its pod is all that is left: it is not taken away, and what
// it names is nobody else's.
func TestWipedNode(t *testing.T) {
	r, c := sharer(t, "gpus: [0]")
	r.run()
	r.list(slots, 16, 0)
	if err := r.tenant("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod's annotation", func() bool { return len(c.boundOf("a")) == 1 })
	r.stop()
	if err := errors.Join(os.RemoveAll(r.options.StateDir), os.RemoveAll(r.options.CDIDir)); err != nil {
		t.Fatal(err)
	}
	r.api.mu.Lock()
	r.api.unlisted = true
	r.api.mu.Unlock()
	r.again(t)
	r.list(slots, 16, 0)
	if err := r.tenant("b", "30/4", nil); err == nil || !strings.Contains(err.Error(), "it is not known yet which cards it has") {
		t.Errorf("before the API server tells of the pods: %v", err)
	}
	r.api.mu.Lock()
	r.api.unlisted = false
	r.api.mu.Unlock()
	until(t, "the list of pods", func() bool {
		_, _, known := r.API.Pods()
		return known
	})

	if err := r.tenant("late", "50/4", nil); err == nil || !strings.Contains(err.Error(), "40 % of 100 left; needs 50") {
		t.Errorf("error %v", err)
	}
	if _, err := r.kubelet.StartContainer(t.Context(), "default", "b", "main"); err != nil {
		t.Errorf("what is left cannot be had: %v", err)
	}
	r.api.wait(t, "the Event", func() bool {
		return has(r.api.notices, "SGPUDrift the record and the CDI spec of container main of default/a were lost")
	})
	// All pods were told what they have by then.
	until(t, "the other's annotation", func() bool { return len(c.boundOf("b")) == 1 })
	if got := c.boundOf("a"); len(got) != 1 {
		t.Errorf("the annotation was changed: %q", got)
	}
	if p := r.api.pod("a"); p.Annotations[wellknown.SGPUBound] == "" {
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
	// Its pod is told nothing else when somebody forges it now.
	r.api.edit("a", func(p *corev1.Pod) { delete(p.Annotations, wellknown.SGPUBound) })
	until(t, "the annotation put back", func() bool { return len(c.boundOf("a")) == 2 })
	if got := c.boundOf("a"); got[0] != got[1] {
		t.Errorf("annotations %q", got)
	}
}
