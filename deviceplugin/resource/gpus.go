package resource

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/preferred"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/discovery/capacity"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// GPUNames lists the resources of the node's GPUs: full GPUs first, even if none exist, then one
// for every MIG profile under strategy mixed, and the resources of other vendors.
func GPUNames(inv *inventory.Inventory) []string {
	profiles := map[string]bool{}
	for i := range inv.Machine.GPUs {
		for _, d := range devicesOf(inv, i) {
			if d.resource != inv.Config.Resources.GPU {
				profiles[d.resource] = true
			}
		}
	}
	return append([]string{inv.Config.Resources.GPU}, slices.Sorted(maps.Keys(profiles))...)
}

// device is a GPU or a MIG device that a container can have.
type device struct {
	id       string
	resource string
	// gpu is the place in the machine's GPUs of the GPU, or of the one that it
	// was cut from; instance distinguishes the two.
	gpu      int
	instance bool
	vendor   *devgpu.Vendor
	// unhealthy explains why it cannot be allocated, according to the scan and the modes.
	unhealthy string
}

// devicesOf lists the devices of the GPU at an index: itself, its MIG
// devices, or nothing if it is shared. Where no GPU is changing its mode it
// agrees with discovery/capacity.
func devicesOf(inv *inventory.Inventory, index int) []device {
	g, c := &inv.Machine.GPUs[index], inv.Config
	unavailable := inv.GPUs[g.UUID].Unavailable
	switch {
	case inv.GPUs[g.UUID].Mode != config.ModeNative:
		return nil
	case len(g.MIG.Devices) == 0 || c.InstanceResource(g, "") == "":
		reason := cmp.Or(capacity.Unallocatable(g, c), unavailable)
		return []device{{id: g.UUID, resource: c.GPUResource(g), gpu: index, unhealthy: reason}}
	}
	var devices []device
	reason := cmp.Or(c.Health.Fault(g.Health), unavailable)
	for i := range g.MIG.Devices {
		d := &g.MIG.Devices[i]
		resource := c.InstanceResource(g, d.Profile)
		devices = append(devices, device{id: d.UUID, resource: resource, gpu: index, instance: true, unhealthy: reason})
	}
	return devices
}

// Strategy is the way a container runtime learns which GPUs a container has.
type Strategy string

const (
	// CDI names devices of CDI specs. The runtime needs no part of the vendor's.
	CDI Strategy = "cdi"
	// Envvar sets the vendor's variable of visible devices, for runtimes with the
	// vendor's hook and without CDI. What else is prepared for a container does
	// not reach it.
	Envvar Strategy = "envvar"
)

// GPUOptions configures a GPUs. Its name is a name from [GPUNames].
type GPUOptions struct {
	Options
	Strategy Strategy
	Features devgpu.Features
	// Vendors are the vendors of the GPUs that the node may have.
	Vendors devgpu.Vendors
}

// GPUs is a resource of GPUs for [server.Plugin]. Its methods are safe for concurrent use.
type GPUs struct {
	*base
	options GPUOptions
	now     atomic.Pointer[Snapshot]
}

// Snapshot is a resource at one moment. It is never changed.
type Snapshot struct {
	inventory *inventory.Inventory
	devices   map[string]device
	// vendors are the vendors of the machine's GPUs.
	vendors devgpu.Vendors
	// faults explains why devices are unhealthy, by ID.
	faults map[string]string
	// uuids are the UUIDs of the machine's GPUs, by index.
	uuids  []string
	scores *preferred.Scores
}

var _ server.Resource = (*GPUs)(nil)

// NewGPUs makes a resource of the machine as it is now.
func NewGPUs(o GPUOptions, inv *inventory.Inventory) *GPUs {
	if o.Strategy == Envvar {
		o.Driver = nil
	}
	r := &GPUs{base: newBase(o.Options), options: o}
	r.now.Store(&Snapshot{inventory: inv})
	r.Refresh(inv)
	return r
}

// Refresh takes a new snapshot.
func (r *GPUs) Refresh(inv *inventory.Inventory) {
	s, devices := r.look(r.now.Load(), inv)
	// The kubelet may request offered devices at once.
	r.now.Store(s)
	r.Offer(devices)
}

func (r *GPUs) look(old *Snapshot, inv *inventory.Inventory) (s *Snapshot, devices []server.Device) {
	m, c := inv.Machine, inv.Config
	s = &Snapshot{
		inventory: inv, vendors: r.options.Vendors.Present(inv.Machine),
		devices: map[string]device{}, faults: map[string]string{},
	}
	s.scores = preferred.New(old.scores, c.WithRoles(m))
	for i := range m.GPUs {
		g := &m.GPUs[i]
		s.uuids = append(s.uuids, g.UUID)
		for _, d := range devicesOf(inv, i) {
			if _, twice := s.devices[d.id]; twice || d.id == "" || d.resource != r.Name {
				continue
			}
			d.vendor = r.options.Vendors.Of(m, g)
			s.devices[d.id] = d
			fault := cmp.Or(d.unhealthy, inv.GPUs[g.UUID].Unhealthy, inv.Elsewhere[r.Name][d.id])
			if r.options.Strategy == CDI {
				fault = cmp.Or(fault, inv.GPUs[g.UUID].CDIError)
			}
			if fault != "" {
				s.faults[d.id] = fault
			}
			devices = append(devices, server.Device{ID: d.id, Healthy: fault == "", NUMA: numaOf(m.Function(g.PCI))})
		}
	}
	return s, devices
}

// Snapshot returns the resource as the last [GPUs.Refresh] left it.
func (r *GPUs) Snapshot() *Snapshot { return r.now.Load() }

// IDs returns the device IDs, sorted.
func (s *Snapshot) IDs() []string { return slices.Sorted(maps.Keys(s.devices)) }

// Faults returns the reasons why devices are unhealthy, by ID. Callers must not change them.
func (s *Snapshot) Faults() map[string]string { return s.faults }

// Free lists the devices that a pod can get while containers hold the IDs in held.
func (s *Snapshot) Free(held map[string]bool) *allocation.FreeGPUs {
	free := &allocation.FreeGPUs{Version: allocation.Version, Held: len(held), Free: []allocation.FreeGPU{}}
	for _, id := range s.IDs() {
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

// Annotation returns the value of [github.com/heddle-dev/heddle/api/wellknown.GPUTopology]
// while containers hold the IDs in held: what requests for whole GPUs of every
// size would get.
func (s *Snapshot) Annotation(held map[string]bool) string {
	return preferred.Annotation(s.scores.Table(s.choice(held)))
}

// MetaX returns the same in MetaX's annotations; see [preferred.Scores.MetaX].
func (s *Snapshot) MetaX(held map[string]bool) (scores, losses string) {
	return s.scores.MetaX(s.choice(held))
}

// choice returns the GPUs that no container holds.
func (s *Snapshot) choice(held map[string]bool) uint64 {
	var free uint64
	for id, d := range s.devices {
		if !held[id] && !d.instance && s.faults[id] == "" && d.gpu < preferred.MaxGPUs {
			free |= 1 << d.gpu
		}
	}
	return free
}

// Allocate implements [server.Allocator]. Neither topology nor the health of other
// GPUs may fail a pod. The name is recorded with both strategies: PreStart finds
// the container by it.
func (r *GPUs) Allocate(_ context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	ids = slices.Sorted(slices.Values(ids))
	if err := checkMode(r.now.Load().inventory, config.ModeNative, ids); err != nil {
		return nil, err
	}
	answer, err := r.Answer(ids, ids...)
	switch {
	case err != nil:
		return nil, err
	case r.options.Strategy == Envvar:
		return &v1beta1.ContainerAllocateResponse{Envs: r.environment(ids)}, nil
	}
	answer.Envs = r.hidden()
	return answer, nil
}

// hidden returns the environment by which no vendor's own runtime adds anything to
// what CDI brings.
func (r *GPUs) hidden() map[string]string {
	env := map[string]string{}
	for _, v := range r.now.Load().vendors {
		maps.Copy(env, v.Environment.Hidden())
	}
	return env
}

// environment returns the variables that runtimes without CDI need, by vendor. An ID that has just
// left the snapshot is of the first vendor.
func (r *GPUs) environment(ids []string) map[string]string {
	s, env := r.now.Load(), map[string]string{}
	for i, v := range s.vendors {
		own := slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
			d, known := s.devices[id]
			return known && d.vendor != v || !known && i > 0
		})
		if len(own) > 0 {
			maps.Copy(env, v.Environment.Show(own, r.options.Features))
		}
	}
	return env
}
