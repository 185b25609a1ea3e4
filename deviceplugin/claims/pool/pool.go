// Package pool describes the devices of a node that claims get as a pool of ResourceSlices, and finds the
// GPU and the HCA behind the name of one.
//
// It is pure: an inventory in, a pool out. The order is stable. All devices of one GPU are in one slice, so
// that a fault of it is one write.
package pool

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// Limits of ResourceSlices (k8s.io/api/resource/v1): devices of a slice with counters or taints, and counter
// sets of a slice.
const (
	maxDevices     = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
	maxCounterSets = resourceapi.ResourceSliceMaxCounterSets
)

// counter is the one counter of each set: how many use a GPU or an HCA.
const counter = "use"

// Device is one device of the pool.
type Device struct {
	Name string
	Type claims.Type
	// GPU is the UUID of the GPU or MIG device, and HCA the identity of the HCA; empty without one.
	GPU, HCA string
}

// entry is a device with what is published about it.
type entry struct {
	Device
	published resourceapi.Device
	// withdrawn is why no pod should get the device.
	withdrawn string
}

// Pool is the pool of a node.
type Pool struct {
	groups   [][]entry
	counters []resourceapi.CounterSet
}

// Of returns the pool of the GPUs that are in mode claims and of their HCAs. Without any GPU in that mode, it
// has no devices: the device plugin has the HCAs.
func Of(inv *inventory.Inventory) *Pool {
	b := builder{
		Inventory: inv, m: inv.Config.WithRoles(inv.Machine), pairs: allocate.Pairs(inv),
		zones: inventory.Zones(inv.Machine),
	}
	b.rails = affinity.Rails(b.m)
	done := map[int]bool{}
	for _, i := range b.order() {
		g := &b.m.GPUs[i]
		if inv.GPUs[g.UUID].Mode != config.ModeClaims || g.UUID == "" {
			continue
		}
		group := b.gpu(i)
		if pair, ok := b.pairs[i]; ok && !done[pair.Index] {
			done[pair.Index] = true
			group = append(group, b.hca(pair))
		}
		b.groups = append(b.groups, group)
	}
	if len(b.groups) == 0 {
		return &b.Pool
	}
	var others []entry
	for _, hca := range allocate.HCAs(inv) {
		if !done[hca.Index] {
			others = append(others, b.hca(hca))
		}
	}
	b.groups = slices.AppendSeq(b.groups, slices.Chunk(others, maxDevices))
	return &b.Pool
}

// Find returns the device of a name.
func (p *Pool) Find(name string) (Device, bool) {
	for _, group := range p.groups {
		for i := range group {
			if group[i].Name == name {
				return group[i].Device, true
			}
		}
	}
	return Device{}, false
}

// Devices returns all devices, with why no pod should get them; empty if nothing is wrong.
func (p *Pool) Devices() map[Device]string {
	all := map[Device]string{}
	for _, group := range p.groups {
		for i := range group {
			all[group[i].Device] = group[i].withdrawn
		}
	}
	return all
}

// Slices returns the pool for an API server that knows counters, shares and taints of devices (1.36).
func (p *Pool) Slices() []resourceslice.Slice {
	var all []resourceslice.Slice
	for _, group := range p.groups {
		var s resourceslice.Slice
		for i := range group {
			s.Devices = append(s.Devices, group[i].published)
		}
		all = append(all, s)
	}
	for sets := range slices.Chunk(p.counters, maxCounterSets) {
		all = append(all, resourceslice.Slice{SharedCounters: sets})
	}
	return orEmpty(all)
}

// Plain returns the pool for older API servers (1.34, 1.35): whole GPUs, MIG devices and HCAs that are well.
func (p *Pool) Plain() []resourceslice.Slice {
	var all []resourceslice.Slice
	for _, group := range p.groups {
		var s resourceslice.Slice
		for i := range group {
			if group[i].Type == claims.Pair || group[i].withdrawn != "" && group[i].Type != claims.Monitor {
				continue
			}
			d := group[i].published
			d.ConsumesCounters, d.AllowMultipleAllocations, d.Capacity, d.Taints = nil, nil, nil, nil
			s.Devices = append(s.Devices, d)
		}
		all = append(all, s)
	}
	return orEmpty(all)
}

// orEmpty returns one slice without devices for none: the driver runs, and has nothing.
func orEmpty(all []resourceslice.Slice) []resourceslice.Slice {
	if len(all) == 0 {
		return []resourceslice.Slice{{}}
	}
	return all
}

// builder makes a pool.
type builder struct {
	*inventory.Inventory
	Pool

	// m is the machine with corrected roles. The slices below are indexed like its lists; pairs is keyed by GPU.
	m     *machine.Machine
	pairs map[int]allocate.Member
	zones []int
	rails []int
	// counted are the names of the counter sets.
	counted map[string]bool
}

// order returns the GPUs by the rail of the HCA nearest to each, then by PCI address: the scheduler takes the
// first devices that fit, and GPUs of one rail talk to each other from node to node.
func (b *builder) order() []int {
	order := make([]int, len(b.m.GPUs))
	rail := func(gpu int) int {
		if pair, ok := b.pairs[gpu]; ok && b.rails[pair.Index] >= 0 {
			return b.rails[pair.Index]
		}
		return len(b.m.HCAs)
	}
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int {
		return cmp.Or(cmp.Compare(rail(x), rail(y)), machine.ComparePCI(b.m.GPUs[x].PCI, b.m.GPUs[y].PCI))
	})
	return order
}

// gpu returns the devices of a GPU: itself, its pair and its monitor, or its MIG devices.
func (b *builder) gpu(at int) []entry {
	g := &b.m.GPUs[at]
	state := b.GPUs[g.UUID]
	own := b.gpuAttributes(at)
	taints, withdrawn := b.taints(state)
	if g.MIG.Enabled {
		return b.instances(g, own, taints, withdrawn)
	}
	whole := entry{
		Device: Device{Name: name(claims.GPU, g.UUID), Type: claims.GPU, GPU: g.UUID}, withdrawn: withdrawn,
		published: resourceapi.Device{
			Attributes: own.of(claims.GPU), Taints: taints,
			ConsumesCounters:         []resourceapi.DeviceCounterConsumption{b.use(name(claims.GPU, g.UUID), 1)},
			AllowMultipleAllocations: new(true), Capacity: capacity(g),
		},
	}
	whole.published.Name = whole.Name
	monitor := entry{
		Device: Device{Name: name(claims.Monitor, g.UUID), Type: claims.Monitor, GPU: g.UUID}, withdrawn: withdrawn,
		published: resourceapi.Device{
			Name: name(claims.Monitor, g.UUID), Attributes: own.of(claims.Monitor),
		},
	}
	pair, ok := b.pairs[at]
	if !ok {
		return []entry{whole, monitor}
	}
	hca := b.hca(pair)
	both := entry{
		Device:    Device{Name: name(claims.Pair, g.UUID), Type: claims.Pair, GPU: g.UUID, HCA: pair.ID},
		withdrawn: cmp.Or(withdrawn, hca.withdrawn),
		published: resourceapi.Device{
			Attributes: own.of(claims.Pair),
			Taints:     union(taints, hca.published.Taints),
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{
				whole.published.ConsumesCounters[0], hca.published.ConsumesCounters[0],
			},
		},
	}
	both.published.Name = both.Name
	for _, key := range []resourceapi.QualifiedName{
		claims.AttributeHCA, claims.AttributeRail, claims.AttributeRate, claims.AttributeLinkLayer,
	} {
		if value, has := hca.published.Attributes[key]; has {
			both.published.Attributes[key] = value
		}
	}
	return []entry{whole, both, monitor}
}

// union returns the taints of two devices, each key and effect once, as the API asks for.
func union(all, more []resourceapi.DeviceTaint) []resourceapi.DeviceTaint {
	all = slices.Clone(all)
	for _, taint := range more {
		if !slices.Contains(all, taint) {
			all = append(all, taint)
		}
	}
	return all
}

// instances returns the MIG devices of a GPU. Nobody gets the GPU itself while MIG is on.
func (b *builder) instances(
	g *machine.GPU, whole attributes, taints []resourceapi.DeviceTaint, withdrawn string,
) []entry {
	var all []entry
	for i := range g.MIG.Devices {
		d := &g.MIG.Devices[i]
		own := whole.of(claims.MIG)
		own[claims.AttributeUUID], own[claims.AttributeParent] = text(d.UUID), text(g.UUID)
		own[claims.AttributeProfile] = text(d.Profile)
		e := entry{
			Device: Device{Name: name(claims.MIG, d.UUID), Type: claims.MIG, GPU: d.UUID}, withdrawn: withdrawn,
			published: resourceapi.Device{Attributes: own, Taints: taints},
		}
		if d.MemoryMiB > 0 {
			e.published.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				claims.CapacityVMemory: {Value: *mebibytes(d.MemoryMiB)},
			}
		}
		e.published.Name = e.Name
		all = append(all, e)
	}
	return all
}

// hca returns the device of an HCA.
func (b *builder) hca(h allocate.Member) entry {
	hca := &b.m.HCAs[h.Index]
	all := attributes{
		claims.AttributeType: text(string(claims.HCA)), claims.AttributeHCA: text(hca.Name),
	}
	b.place(all, hca.PCI)
	if rail := b.rails[h.Index]; rail >= 0 {
		all[claims.AttributeRail] = number(rail)
	}
	for i := range hca.Ports {
		if p := &hca.Ports[i]; i == 0 || p.State == machine.PortActive {
			all[claims.AttributeLinkLayer] = text(p.LinkLayer)
			if p.RateGbps != nil {
				all[claims.AttributeRate] = number(int(*p.RateGbps))
			}
		}
	}
	e := entry{
		Device: Device{Name: name(claims.HCA, h.ID), Type: claims.HCA, HCA: h.ID}, withdrawn: h.Unhealthy,
		published: resourceapi.Device{
			Attributes: all,
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{
				b.use(name(claims.HCA, h.ID), b.Config.Claims.HCASharers),
			},
		},
	}
	e.published.Name = e.Name
	if h.Unhealthy != "" {
		e.published.Taints = []resourceapi.DeviceTaint{{
			Key: claims.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule,
		}}
	}
	return e
}

// taints returns the taints of a GPU, and why it has them.
func (b *builder) taints(g inventory.GPU) (taints []resourceapi.DeviceTaint, why string) {
	if unhealthy := cmp.Or(g.Unhealthy, g.CDIError); unhealthy != "" {
		effect := resourceapi.DeviceTaintEffectNoSchedule
		if b.Config.Health.Remediation == config.RemediationDrain && g.Unhealthy != "" && g.Unhealthy != b.Unavailable {
			effect = resourceapi.DeviceTaintEffectNoExecute
		}
		taints, why = append(taints, resourceapi.DeviceTaint{Key: claims.TaintUnhealthy, Effect: effect}), unhealthy
	}
	if g.Unavailable != "" {
		taints = append(taints, resourceapi.DeviceTaint{
			Key: claims.TaintUnavailable, Effect: resourceapi.DeviceTaintEffectNoSchedule,
		})
		why = cmp.Or(why, g.Unavailable)
	}
	return taints, why
}

// use returns the consumption of one use of a GPU or an HCA, of as many as there are, and adds the counter set.
func (b *builder) use(set string, of int) resourceapi.DeviceCounterConsumption {
	one := map[string]resourceapi.Counter{counter: {Value: *resource.NewQuantity(1, resource.DecimalSI)}}
	if !b.counted[set] {
		if b.counted == nil {
			b.counted = map[string]bool{}
		}
		b.counted[set] = true
		all := map[string]resourceapi.Counter{counter: {Value: *resource.NewQuantity(int64(of), resource.DecimalSI)}}
		b.counters = append(b.counters, resourceapi.CounterSet{Name: set, Counters: all})
	}
	return resourceapi.DeviceCounterConsumption{CounterSet: set, Counters: one}
}
