package agent

import (
	"context"
	"errors"
	"testing"
)

// named is a Node's status, as far as it names resources.
type named struct {
	resources map[string]bool
	err       error
}

func (n named) Counted(_ context.Context, resource string) (bool, error) {
	return n.resources[resource], n.err
}

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
		name   string
		node   Counts
		counts bool
	}{
		{"a new node", named{}, false},
		{"a node that names them, be it with 0", named{resources: map[string]bool{vcore: true}}, true},
		{"a node that does not answer", named{err: errors.New("no route")}, false},
		{"no API server", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := sharer(t, toHAMi)
			r.Counts = tt.node
			r.run()
			r.list(slots, 8*16, 0)
			if !tt.counts {
				if s := r.all()[vcore]; s != nil {
					t.Errorf("%s is served", vcore)
				}
				return
			}
			r.list(vcore, 800, 0)
			r.list(vmemory, 632, 0)
		})
	}
}
