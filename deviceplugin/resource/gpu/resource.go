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
	"github.com/heddle-dev/heddle/deviceplugin/alloc"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// Strategy is how a container runtime learns which GPUs a container has.
type Strategy string

const (
	// CDI names devices of CDI specs. The runtime needs no part of NVIDIA's.
	CDI Strategy = "cdi"
	// Envvar sets NVIDIA_VISIBLE_DEVICES, for runtimes with NVIDIA's hook and
	// without CDI. What the binder adds for a container does not reach it.
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

// Static knows the CDI devices of the driver's own spec; see [DriverSpec].
type Static interface {
	// Names gives the qualified CDI devices of GPUs and of what comes with
	// every GPU, such as GDRCopy.
	Names(ids []string) []string
	// Mend puts the spec back where somebody deleted or spoilt it.
	Mend() error
}

// Pods guesses for whom the kubelet is asking: it asks for a preference before
// it says so.
type Pods interface {
	// Expected is what the pods want that may be meant by a request for size
	// devices; false if they do not agree, or want nothing.
	Expected(resource string, size int) (Steering, bool)
}

// Features are what containers with GPUs get besides, if the host has it.
type Features struct {
	// GDRCopy is /dev/gdrdrv, GDS the nodes of GPUDirect Storage.
	GDRCopy, GDS bool
	// IMEXChannels are numbers of /dev/nvidia-caps-imex-channels/channelN.
	IMEXChannels []int
}

// Options are what a Resource works with.
type Options struct {
	// Name is one of [Names].
	Name      string
	Allocator Allocator
	Preparer  Preparer
	// Static may be nil with Envvar.
	Static   Static
	Strategy Strategy
	Features Features
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

	// mu makes refreshes take turns and guards seen.
	mu sync.Mutex
	// seen are all IDs that were ever in a snapshot: the kubelet may ask for
	// one that has just left it.
	seen map[string]bool
}

// snapshot is what a resource is at one time.
type snapshot struct {
	cards map[string]card
	// faults are why cards are unhealthy, by ID.
	faults map[string]string
	// uuids are those of the machine's GPUs, by index.
	uuids  []string
	scores *alloc.Scores
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
	for id := range s.cards {
		r.seen[id] = true
	}
	if r.Offer(devices) {
		r.options.Log.Info("GPUs changed", "resource", r.options.Name, "devices", len(devices), "faults", len(s.faults))
	}
}

func (r *Resource) look(old *snapshot, inv *inventory.Inventory) (s *snapshot, devices []server.Device) {
	m, c := inv.Machine, inv.Config
	s = &snapshot{cards: map[string]card{}, faults: map[string]string{}}
	s.scores = alloc.Renew(old.scores, c.WithRoles(m))
	for i := range m.GPUs {
		g := &m.GPUs[i]
		s.uuids = append(s.uuids, g.UUID)
		for _, card := range cardsOf(inv, i) {
			if _, twice := s.cards[card.id]; twice || card.id == "" || card.resource != r.options.Name {
				continue
			}
			s.cards[card.id] = card
			fault := cmp.Or(card.against, inv.GPUs[g.UUID].Unhealthy, inv.Elsewhere[r.options.Name][card.id])
			if fault != "" {
				s.faults[card.id] = fault
			}
			devices = append(devices, server.Device{ID: card.id, Healthy: fault == "", NUMA: numaOf(m, g)})
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

// Faults says of every unhealthy device why.
func (r *Resource) Faults() map[string]string { return maps.Clone(r.now.Load().faults) }

// Free says which devices can be had while containers hold the IDs in held.
func (r *Resource) Free(held map[string]bool) *allocation.FreeGPUs {
	s := r.now.Load()
	free := &allocation.FreeGPUs{Version: allocation.Version, Held: len(held), Free: []allocation.FreeGPU{}}
	for _, id := range slices.Sorted(maps.Keys(s.cards)) {
		if held[id] || s.faults[id] != "" {
			continue
		}
		g := allocation.FreeGPU{UUID: id}
		if parent := s.uuids[s.cards[id].gpu]; parent != id {
			g.Of = parent
		}
		free.Free = append(free.Free, g)
	}
	return free
}

// Annotation is the value of [github.com/heddle-dev/heddle/api/names.GPUTopology]
// while containers hold the IDs in held: what requests for whole GPUs of every
// size would get.
func (r *Resource) Annotation(held map[string]bool) string {
	s := r.now.Load()
	var free uint64
	for id, card := range s.cards {
		if !held[id] && !card.instance && s.faults[id] == "" && card.gpu < alloc.MaxGPUs {
			free |= 1 << card.gpu
		}
	}
	return alloc.Annotation(s.scores.Table(free))
}
