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
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
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
// (topology_hints.go), and a pod whose device has left is shown with a healthy
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
	mu      sync.Mutex
	entries map[string]*entry
	// now is what streams send.
	now listVersion
	// streams maps a live stream to the generation it has sent.
	streams map[uint64]uint64
	lastID  uint64
}

type entry struct {
	device Device
	// named reports whether the Resource names the ID now.
	named bool
	// withdrawn is when it was seen that the Resource does not, or later, when
	// a stream had still to send that.
	withdrawn time.Time
	// generation is the first list's that shows it.
	generation uint64
	// calls are in flight; lastCall is when the last one ended.
	calls    int
	lastCall time.Time
}

func newAdvertised() *advertised {
	return &advertised{
		entries: map[string]*entry{}, streams: map[uint64]uint64{},
		now: listVersion{devices: []*v1beta1.Device{}, since: time.Now(), next: make(chan struct{})},
	}
}

// listVersion is one list to send.
type listVersion struct {
	// devices are immutable, sorted by ID, never nil.
	devices []*v1beta1.Device
	// generation counts the lists, and since is when this one was made.
	generation uint64
	since      time.Time
	// next is closed when there is a newer one.
	next chan struct{}
}

// update takes the Resource's devices. It reports whether the list differs.
func (l *advertised) update(devices []Device) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	named := make(map[string]bool, len(devices))
	for _, d := range devices {
		named[d.ID] = true
		e := l.entries[d.ID]
		if e == nil {
			e = &entry{}
			l.entries[d.ID] = e
		}
		e.device, e.named = d, true
	}
	var gone []*entry
	for id, e := range l.entries {
		if !named[id] && e.named {
			e.named, e.withdrawn = false, time.Now()
			gone = append(gone, e)
		}
	}
	differs := l.publishLocked()
	for _, e := range gone {
		e.generation = l.now.generation
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
		if holds && l.entries[id] == nil {
			l.entries[id] = &entry{device: Device{ID: id}, withdrawn: asked}
		}
	}
	oldest := l.now.generation
	for _, sent := range l.streams {
		oldest = min(oldest, sent)
	}
	maps.DeleteFunc(l.entries, func(id string, e *entry) bool {
		if e.named || holders[id] {
			return false
		}
		if oldest < e.generation && len(l.streams) > 0 {
			e.withdrawn = asked
		}
		quiet := asked.Sub(e.withdrawn) >= linger && asked.Sub(e.lastCall) >= linger
		return e.calls == 0 && quiet
	})
	l.publishLocked()
}

// publishLocked makes the list again and reports whether it differs.
func (l *advertised) publishLocked() bool {
	list := make([]*v1beta1.Device, 0, len(l.entries))
	// A node has a few NUMA nodes, and may have thousands of replicas.
	var topologies []*v1beta1.TopologyInfo
	for _, id := range slices.Sorted(maps.Keys(l.entries)) {
		e := l.entries[id]
		d := &v1beta1.Device{ID: id, Health: v1beta1.Unhealthy}
		if e.named && e.device.Healthy {
			d.Health = v1beta1.Healthy
		}
		if len(e.device.NUMA) > 0 {
			d.Topology, topologies = topologyOf(e.device.NUMA, topologies)
		}
		list = append(list, d)
	}
	if slices.EqualFunc(list, l.now.devices, sameDevice) {
		return false
	}
	l.replaceLocked(list)
	return true
}

// topologyOf is the message for NUMA nodes: one of those that were made, or another.
func topologyOf(nodes []int64, made []*v1beta1.TopologyInfo) (*v1beta1.TopologyInfo, []*v1beta1.TopologyInfo) {
	for _, t := range made {
		if slices.EqualFunc(t.GetNodes(), nodes, func(n *v1beta1.NUMANode, id int64) bool { return n.GetID() == id }) {
			return t, made
		}
	}
	t := &v1beta1.TopologyInfo{}
	for _, id := range nodes {
		t.Nodes = append(t.Nodes, &v1beta1.NUMANode{ID: id})
	}
	return t, append(made, t)
}

func (l *advertised) replaceLocked(list []*v1beta1.Device) {
	close(l.now.next)
	l.now = listVersion{list, l.now.generation + 1, time.Now(), make(chan struct{})}
}

// again makes streams send the list once more.
func (l *advertised) again() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replaceLocked(l.now.devices)
}

func sameDevice(a, b *v1beta1.Device) bool {
	sameNode := func(a, b *v1beta1.NUMANode) bool { return a.GetID() == b.GetID() }
	return a.GetID() == b.GetID() && a.GetHealth() == b.GetHealth() &&
		slices.EqualFunc(a.GetTopology().GetNodes(), b.GetTopology().GetNodes(), sameNode)
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
	unknown := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return l.entries[id] != nil })
	if len(unknown) > 0 || len(ids) == 0 {
		return status.Error(codes.InvalidArgument, rejection(resource, unknown))
	}
	for _, id := range ids {
		l.entries[id].calls++
	}
	return nil
}

func (l *advertised) end(ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		// An entry with calls stays, so begin's are all there.
		e := l.entries[id]
		e.calls--
		e.lastCall = time.Now()
	}
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

// counts are what the gauges show.
type counts struct {
	capacity, allocatable, withdrawn, streams int
}

func (l *advertised) counts() counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := counts{capacity: len(l.now.devices), streams: len(l.streams)}
	for _, d := range l.now.devices {
		if d.GetHealth() == v1beta1.Healthy {
			c.allocatable++
		}
	}
	for _, e := range l.entries {
		if !e.named {
			c.withdrawn++
		}
	}
	return c
}
