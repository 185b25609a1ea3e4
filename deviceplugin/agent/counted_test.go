package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const toHAMi = "hami: {enabled: true}"

// TestWhatWasCountedStaysCounted: a kubelet fails the pods that name a resource
// which is withdrawn, and HAMi's pods name vcore and vmemory.
func TestWhatWasCountedStaysCounted(t *testing.T) {
	r, _ := sharer(t, "slotsPerGPU: 4")
	r.run()
	r.list(vcore, 800, 0)
	r.list(vmemory, 632, 0)
	r.configure("mode: sgpu\nsgpu: {slotsPerGPU: 2, " + toHAMi + "}\n")
	r.list(slots, 16, 16)
	r.list(vcore, 800, 0)
	r.list(vmemory, 632, 0)
}

func TestCountedBeforeThisProcess(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(*rig)
		counts  bool
	}{
		{"a new node", func(*rig) {}, false},
		{"a node that names them, be it with 0", func(r *rig) {
			r.api.EditNode(func(n *corev1.Node) { n.Status.Capacity = resourceList(map[string]string{vcore: "0"}) })
		}, true},
		{"a node that does not answer", func(r *rig) { r.api.Hang = true }, false},
		{"no API server", func(r *rig) { r.API = nil }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := sharer(t, toHAMi)
			tt.prepare(r)
			r.run()
			r.list(slots, 8*16, 0)
			if !tt.counts {
				if s := r.resources.all()[vcore]; s != nil {
					t.Errorf("%s is served", vcore)
				}
				return
			}
			r.list(vcore, 800, 0)
			r.list(vmemory, 632, 0)
		})
	}
}
