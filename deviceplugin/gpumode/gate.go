package gpumode

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/replica"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// calls are those in flight that may give a GPU to a pod.
type calls struct {
	// allocating counts calls of Allocate by GPU.
	allocating map[string]int
	// starting are when the calls of PreStart began.
	starting map[*gate][]time.Time
}

func newCalls() calls { return calls{allocating: map[string]int{}, starting: map[*gate][]time.Time{}} }

// oldest is when the oldest call of PreStart began, by mode. A gate has its calls
// in the order in which they began.
func (c *calls) oldest() map[config.Mode]time.Time {
	all := map[config.Mode]time.Time{}
	for g, began := range c.starting {
		if first, ok := all[g.mode]; len(began) > 0 && (!ok || began[0].Before(first)) {
			all[g.mode] = began[0]
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
	t := g.tracker
	began := time.Now()
	t.mu.Lock()
	t.calls.starting[g] = append(t.calls.starting[g], began)
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		at := slices.Index(t.calls.starting[g], began)
		t.calls.starting[g] = slices.Delete(t.calls.starting[g], at, at+1)
	}()
	return g.Resource.PreStart(ctx, ids)
}

// allocate notes a call, which is for these GPUs.
func (t *Tracker) allocate(in config.Mode, ids []string) (uuids map[string]bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	uuids = map[string]bool{}
	for _, id := range ids {
		uuid, _, _ := strings.Cut(id, replica.Separator)
		if parent := t.parents[uuid]; parent != "" {
			uuid = parent
		}
		if g, ok := t.gpus[uuid]; ok && (g.mode != in || g.writing) {
			return nil, fmt.Errorf("GPU %s is already allocated as %s", uuid, g.mode)
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
