package mode

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// gate is a resource whose calls the Tracker knows of.
type gate struct {
	server.Resource
	tracker *Tracker
	mode    config.Mode
}

// Gate makes a resource's calls known: a card does not move while one is in
// flight that may give it to somebody. Allocate of a card that has moved fails,
// which ends the pod; it takes a kubelet that needed longer than 0.5 s from its
// choice to the call.
func (t *Tracker) Gate(in config.Mode, r server.Resource) server.Resource {
	return &gate{Resource: r, tracker: t, mode: in}
}

// Allocate implements [server.Allocator].
func (g *gate) Allocate(ctx context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	end, err := g.tracker.allocate(g.mode, ids)
	if err != nil {
		return nil, err
	}
	defer end()
	return g.Resource.Allocate(ctx, ids)
}

// PreStart implements [server.Allocator].
func (g *gate) PreStart(ctx context.Context, ids []string) error {
	defer g.tracker.bind(g.mode)()
	return g.Resource.PreStart(ctx, ids)
}

// allocate notes a call until end.
func (t *Tracker) allocate(in config.Mode, ids []string) (end func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	uuids := map[string]bool{}
	for _, id := range ids {
		uuid, _, _ := strings.Cut(id, slot)
		if parent := t.machine.ParentGPU(uuid); parent != "" {
			uuid = parent
		}
		if c, ok := t.cards[uuid]; ok && (c.mode != in || c.writing) {
			return nil, fmt.Errorf("card %s is handed out as %s by now", uuid, c.mode)
		}
		uuids[uuid] = true
	}
	for uuid := range uuids {
		t.allocating[uuid]++
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for uuid := range uuids {
			if t.allocating[uuid]--; t.allocating[uuid] == 0 {
				delete(t.allocating, uuid)
			}
		}
	}, nil
}

// bind notes a call until end: it may bind any card of the mode that was not
// withdrawn when it began.
func (t *Tracker) bind(in config.Mode) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
	call := t.calls
	t.binding[call] = bind{mode: in, began: time.Now()}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.binding, call)
	}
}
