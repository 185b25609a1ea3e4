package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// advertised is the list that every stream sends, and the rule that an ID once
// advertised stays listed. A kubelet (v1.37, pkg/kubelet/cm/devicemanager)
// replaces its devices by every list:
//
//	m.allDevices[resourceName] = make(map[string]*pluginapi.Device)
//
// and then, for an ID that left while its Allocate was under way, it
// dereferences nil and dies (manager.go, allocateContainerResources):
//
//	resp, err := eI.e.allocate(ctx, devs)
//	...
//	if m.allDevices[resource][dev].Topology == nil || ...
//
// so does generateDeviceTopologyHints for one that an init container hands on
// (topology_hints.go), and a pod with a missing device is shown with a healthy
// one (UpdateAllocatedResourcesStatus):
//
//	health := pluginapi.Healthy
//	// this is unlikely, but check for existence here anyways
//
// So an ID that the Resource no longer names is only marked Unhealthy. It
// leaves when every stream has sent that and linger has passed, no call is in
// flight for it or was within linger, and no pod is known to hold it. linger
// is for what the plugin does not see of the kubelet: between choosing the ID and
// calling Allocate, and between the answer and its PodResources.
type advertised struct {
	mu sync.Mutex
	// offered are the Resource's, and withdrawn the other listed devices, by ID.
	offered   []Device
	withdrawn map[string]*withdrawal
	// calls of Allocate, by listed ID. Only IDs that pods get have any.
	calls map[string]calls
	// now is the list that streams send.
	now listVersion
	// streams maps a live stream to the generation it has sent.
	streams map[uint64]uint64
	lastID  uint64
}

// withdrawal is a device that the Resource does not name any more.
type withdrawal struct {
	numa []int64
	// since is when it was seen that the Resource does not, or later, when a
	// stream had still to send that.
	since time.Time
	// generation is the first list's that shows it.
	generation uint64
}

// calls of one ID are in flight, and the last one ended.
type calls struct {
	inFlight int
	ended    time.Time
}

func newAdvertised() *advertised {
	return &advertised{
		withdrawn: map[string]*withdrawal{}, calls: map[string]calls{}, streams: map[uint64]uint64{},
		now: listVersion{since: time.Now(), next: make(chan struct{})},
	}
}

// listVersion is one list to send.
type listVersion struct {
	// devices are immutable and sorted by ID. Where none is withdrawn they are
	// the Resource's own.
	devices []Device
	// generation counts the lists, and since is when this one was made.
	generation uint64
	since      time.Time
	// next is closed when there is a newer one.
	next chan struct{}
}

// update takes the Resource's devices, which stay as they are. It reports whether
// the list differs.
func (l *advertised) update(devices []Device) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	var gone []*withdrawal
	for _, d := range l.offered {
		if _, named := find(devices, d.ID); !named {
			w := &withdrawal{numa: d.NUMA, since: time.Now()}
			l.withdrawn[d.ID] = w
			gone = append(gone, w)
		}
	}
	l.offered = devices
	maps.DeleteFunc(l.withdrawn, func(id string, _ *withdrawal) bool {
		_, named := find(devices, id)
		return named
	})
	differs := l.publishLocked()
	for _, w := range gone {
		w.generation = l.now.generation
	}
	return differs
}

// held takes the IDs that pods hold, from a question that was asked at that time.
// IDs that the Resource does not name (the plugin was restarted meanwhile) enter
// the list, and those that no pod holds any more leave it.
func (l *advertised) held(holders map[string]bool, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, holds := range holders {
		if holds && !l.listedLocked(id) {
			l.withdrawn[id] = &withdrawal{since: asked}
		}
	}
	oldest := l.now.generation
	for _, sent := range l.streams {
		oldest = min(oldest, sent)
	}
	maps.DeleteFunc(l.withdrawn, func(id string, w *withdrawal) bool {
		if holders[id] {
			return false
		}
		if oldest < w.generation && len(l.streams) > 0 {
			w.since = asked
		}
		c := l.calls[id]
		leaves := c.inFlight == 0 && asked.Sub(w.since) >= linger && asked.Sub(c.ended) >= linger
		if leaves {
			delete(l.calls, id)
		}
		return leaves
	})
	l.publishLocked()
}

// listedLocked reports whether an ID is offered or only withdrawn.
func (l *advertised) listedLocked(id string) bool {
	_, offered := find(l.offered, id)
	return offered || l.withdrawn[id] != nil
}

// publishLocked makes the list again and reports whether it differs.
func (l *advertised) publishLocked() bool {
	list := l.offered
	if len(l.withdrawn) > 0 {
		list = slices.Clone(list)
		for id, w := range l.withdrawn {
			d := Device{ID: id, NUMA: w.numa}
			// The topology manager aligns each pod that requests the resource, also one that gets it by a claim, if any
			// device has NUMA nodes, and rejects it because it finds no devices (topology_hints.go, GetTopologyHints).
			if len(l.offered) == 0 {
				d.NUMA = nil
			}
			list = append(list, d)
		}
		sortByID(list)
	}
	if slices.EqualFunc(list, l.now.devices, Device.equal) {
		return false
	}
	close(l.now.next)
	l.now = listVersion{list, l.now.generation + 1, time.Now(), make(chan struct{})}
	return true
}

func (l *advertised) current() listVersion {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// join adds a stream, which has sent nothing yet.
func (l *advertised) join() (stream uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	l.streams[l.lastID] = 0
	return l.lastID
}

func (l *advertised) sent(stream, generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[stream] = generation
}

func (l *advertised) leave(stream uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, stream)
}

// begin notes a call of Allocate. IDs that are not listed are rejected.
func (l *advertised) begin(resource string, ids []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	unknown := slices.DeleteFunc(slices.Clone(ids), l.listedLocked)
	if len(unknown) > 0 || len(ids) == 0 {
		return status.Error(codes.InvalidArgument, rejection(resource, unknown))
	}
	for _, id := range ids {
		c := l.calls[id]
		c.inFlight++
		l.calls[id] = c
	}
	return nil
}

func (l *advertised) end(ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.calls[id] = calls{l.calls[id].inFlight - 1, time.Now()}
	}
}

// inFlight returns the IDs that calls of Allocate are for.
func (l *advertised) inFlight() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for id, c := range l.calls {
		if c.inFlight > 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// shownIDs bounds how many IDs an error names.
const shownIDs = 8

func rejection(resource string, unknown []string) string {
	if len(unknown) == 0 {
		return resource + ": a request without device IDs"
	}
	slices.Sort(unknown)
	more := ""
	if n := len(unknown) - shownIDs; n > 0 {
		unknown, more = unknown[:shownIDs], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s: device IDs that were never advertised here: %s%s", resource, strings.Join(unknown, ", "), more)
}

// counts are the values of the gauges.
type counts struct {
	capacity, allocatable, withdrawn, streams int
}

func (l *advertised) counts() counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := counts{capacity: len(l.now.devices), withdrawn: len(l.withdrawn), streams: len(l.streams)}
	for i := range l.now.devices {
		if l.now.devices[i].Healthy {
			c.allocatable++
		}
	}
	return c
}
