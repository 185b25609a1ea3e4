package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// TestMetaXNode: the Node has the annotations of MetaX's device plugin, and those for HAMi once HAMi's scheduler writes
// to it.
func TestMetaXNode(t *testing.T) {
	r := newRig(t, "metax-c500-box", func(o *Options) { o.Generator, o.Interval = anyNodes{}, 10*time.Millisecond }).run()
	annotated := func(keys ...string) {
		r.api.Wait(t, "annotations", func() bool {
			n := len(r.api.annotations)
			return n > 0 && !slices.ContainsFunc(keys, func(key string) bool { return r.api.annotations[n-1][key] == "" })
		})
	}
	annotated(wellknown.MetaXScores, wellknown.MetaXLosses)
	r.configure("mode: sgpu\n")
	r.list("metax-tech.com/sgpu", 8*16, 0)
	r.list("metax-tech.com/vcore", 8*100, 0)
	until(t, "the shared GPUs", func() bool { return len(r.api.sharedGPUs(t)) == 8 })
	r.api.Mu.Lock()
	if got := r.api.annotations[len(r.api.annotations)-1][wellknown.HAMiGPUs]; got != "" {
		t.Errorf("without HAMi: %s", got)
	}
	r.api.Mu.Unlock()
	r.api.EditNode(func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[wellknown.HAMiHandshake+"-xpu"] = "Requesting_2026-11-22 15:17:17"
	})
	annotated(wellknown.HAMiGPUs)
}
