package gpumode

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// calls are those in flight that may give a GPU to a pod.
type calls struct {
	// allocating counts calls of Allocate by GPU.
	allocating map[string]int
	// starting are the calls of PreStart by number.
	starting map[uint64]preStart
	last     uint64
}

// preStart is a call of PreStart.
type preStart struct {
	mode  config.Mode
	began time.Time
}

func newCalls() calls { return calls{allocating: map[string]int{}, starting: map[uint64]preStart{}} }

// oldest is when the oldest call of PreStart began, by mode.
func (c *calls) oldest() map[config.Mode]time.Time {
	all := map[config.Mode]time.Time{}
	for _, s := range c.starting {
		if began, ok := all[s.mode]; !ok || s.began.Before(began) {
			all[s.mode] = s.began
		}
	}
	return all
}

// gate is a resource whose calls the Tracker knows of.
type gate struct {
	server.Resource
	tracker *Tracker
	mode    config.Mode
}

// Gate makes a resource's calls known: the mode of a GPU does not change while
// one is in flight that may give it to a pod. Allocate of a GPU whose mode has
// changed fails, which ends the pod; it takes a kubelet that needed longer than
// 0.5 s from its choice to the call.
func (t *Tracker) Gate(in config.Mode, r server.Resource) server.Resource {
	return &gate{Resource: r, tracker: t, mode: in}
}

// Allocate implements [server.Allocator].
func (g *gate) Allocate(ctx context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	uuids, err := g.tracker.allocate(g.mode, ids)
	if err != nil {
		return nil, err
	}
	defer g.tracker.allocated(uuids)
	return g.Resource.Allocate(ctx, ids)
}

// PreStart implements [server.Allocator]. It may give any GPU of the mode to the
// container that was not withdrawn when it began.
func (g *gate) PreStart(ctx context.Context, ids []string) error {
	call := g.tracker.starts(g.mode)
	defer g.tracker.started(call)
	return g.Resource.PreStart(ctx, ids)
}

// allocate notes a call, which is for these GPUs.
func (t *Tracker) allocate(in config.Mode, ids []string) (uuids map[string]bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	uuids = map[string]bool{}
	for _, id := range ids {
		uuid, _, _ := strings.Cut(id, replica)
		if parent := t.parents[uuid]; parent != "" {
			uuid = parent
		}
		if g, ok := t.gpus[uuid]; ok && (g.mode != in || g.writing) {
			return nil, fmt.Errorf("GPU %s is handed out as %s by now", uuid, g.mode)
		}
		uuids[uuid] = true
	}
	for uuid := range uuids {
		t.calls.allocating[uuid]++
	}
	return uuids, nil
}

func (t *Tracker) allocated(uuids map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for uuid := range uuids {
		if t.calls.allocating[uuid]--; t.calls.allocating[uuid] == 0 {
			delete(t.calls.allocating, uuid)
		}
	}
}

func (t *Tracker) starts(in config.Mode) (call uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls.last++
	t.calls.starting[t.calls.last] = preStart{mode: in, began: time.Now()}
	return t.calls.last
}

func (t *Tracker) started(call uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.calls.starting, call)
}
