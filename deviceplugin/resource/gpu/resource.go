package gpu

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/preferred"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// Strategy is how a container runtime learns which GPUs a container has.
type Strategy string

const (
	// CDI names devices of CDI specs. The runtime needs no part of the vendor's.
	CDI Strategy = "cdi"
	// Envvar sets the vendor's variable of visible devices, for runtimes with the
	// vendor's hook and without CDI. What else is prepared for a container does
	// not reach it.
	Envvar Strategy = "envvar"
)

// Allocator makes the CDI device of one answer to the kubelet, and records it.
type Allocator interface {
	Allocate(resource string, ids []string) (cdiDevice string, err error)
}

// Preparer prepares what the CDI device of a container stands for.
type Preparer interface {
	Prepare(ctx context.Context, resource string, ids []string) error
}

// Pods guesses which pod the kubelet is asking for: it asks for a preference
// before it names the pod.
type Pods interface {
	// Expected is what the pods want that may be meant by a request for size
	// devices; false if they do not agree, or want nothing.
	Expected(resource string, size int) (Selector, bool)
}

// Options are what a Resource works with.
type Options struct {
	// Name is one of [Names].
	Name      string
	Allocator Allocator
	Preparer  Preparer
	// Driver is the driver's CDI spec; it may be nil with Envvar.
	Driver   *cdi.DriverSpec
	Strategy Strategy
	Features devgpu.Features
	// Vendors are those whose GPUs the node may have.
	Vendors devgpu.Vendors
	// InUse are devices that the kubelet offers although containers have them,
	// by ID, with who has each: they are preferred to none. Nil is none.
	InUse func() map[string]string
	// Pods may be nil: then nothing steers the choice.
	Pods Pods
	// Log defaults to none.
	Log *slog.Logger
}

// Resource is one resource of GPUs for [server.Plugin]. Its methods may be
// called at once.
type Resource struct {
	*server.List
	options Options
	now     atomic.Pointer[snapshot]

	// mu serializes refreshes and guards seen.
	mu sync.Mutex
	// seen are all IDs that were ever in a snapshot: the kubelet may ask for
	// one that has just left it.
	seen map[string]bool
}

// snapshot is what a resource is at one time.
type snapshot struct {
	devices map[string]device
	// vendors are those of the machine's GPUs.
	vendors devgpu.Vendors
	// faults are why devices are unhealthy, by ID.
	faults map[string]string
	// uuids are those of the machine's GPUs, by index.
	uuids  []string
	scores *preferred.Scores
}

var _ server.Resource = (*Resource)(nil)

// New makes a resource of the machine as it is now.
func New(o Options, inv *inventory.Inventory) *Resource {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Strategy == "" {
		o.Strategy = CDI
	}
	r := &Resource{List: server.NewList(), options: o, seen: map[string]bool{}}
	r.Refresh(inv)
	return r
}

// Refresh takes a new snapshot.
func (r *Resource) Refresh(inv *inventory.Inventory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.now.Load()
	if old == nil {
		old = &snapshot{}
	}
	s, devices := r.look(old, inv)
	r.now.Store(s)
	for id := range s.devices {
		r.seen[id] = true
	}
	if r.Offer(devices) {
		r.options.Log.Info("GPUs changed", "resource", r.options.Name, "devices", len(devices), "faults", len(s.faults))
	}
}

func (r *Resource) look(old *snapshot, inv *inventory.Inventory) (s *snapshot, devices []server.Device) {
	m, c := inv.Machine, inv.Config
	s = &snapshot{
		devices: map[string]device{}, vendors: r.options.Vendors.Present(inv.Machine), faults: map[string]string{},
	}
	s.scores = preferred.Renew(old.scores, c.WithRoles(m))
	for i := range m.GPUs {
		g := &m.GPUs[i]
		s.uuids = append(s.uuids, g.UUID)
		for _, d := range devicesOf(inv, i) {
			if _, twice := s.devices[d.id]; twice || d.id == "" || d.resource != r.options.Name {
				continue
			}
			d.vendor = r.options.Vendors.Of(m, g)
			s.devices[d.id] = d
			fault := cmp.Or(d.unhealthy, inv.GPUs[g.UUID].Unhealthy, inv.Elsewhere[r.options.Name][d.id])
			if fault != "" {
				s.faults[d.id] = fault
			}
			devices = append(devices, server.Device{ID: d.id, Healthy: fault == "", NUMA: numaOf(m, g)})
		}
	}
	return s, devices
}

func numaOf(m *machine.Machine, g *machine.GPU) []int64 {
	f := m.Function(g.PCI)
	if f == nil || f.NUMA == nil {
		return nil
	}
	return []int64{int64(*f.NUMA)}
}

// Faults are the reasons of unhealthy devices, by ID.
func (r *Resource) Faults() map[string]string { return maps.Clone(r.now.Load().faults) }

// Free are the devices that a pod can get while containers hold the IDs in held.
func (r *Resource) Free(held map[string]bool) *allocation.FreeGPUs {
	s := r.now.Load()
	free := &allocation.FreeGPUs{Version: allocation.Version, Held: len(held), Free: []allocation.FreeGPU{}}
	for _, id := range slices.Sorted(maps.Keys(s.devices)) {
		if held[id] || s.faults[id] != "" {
			continue
		}
		g := allocation.FreeGPU{UUID: id}
		if parent := s.uuids[s.devices[id].gpu]; parent != id {
			g.Of = parent
		}
		free.Free = append(free.Free, g)
	}
	return free
}

// Annotation is the value of [github.com/heddle-dev/heddle/api/wellknown.GPUTopology]
// while containers hold the IDs in held: what requests for whole GPUs of every
// size would get.
func (r *Resource) Annotation(held map[string]bool) string {
	s := r.now.Load()
	var free uint64
	for id, d := range s.devices {
		if !held[id] && !d.instance && s.faults[id] == "" && d.gpu < preferred.MaxGPUs {
			free |= 1 << d.gpu
		}
	}
	return preferred.Annotation(s.scores.Table(free))
}
