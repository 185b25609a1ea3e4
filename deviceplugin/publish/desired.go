package publish

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/breaker"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/discovery/capacity"
)

// Status is the desired content of the Node.
type Status struct {
	// Notices holds Events by subject. An Event is sent when it appears here.
	Notices    map[string]health.NodeEvent
	Conditions []health.Condition
	// Annotations are the Node's; an empty value removes one, and one that is absent
	// here stays as it is.
	Annotations map[string]string
	// Taints is whether the Node should have a taint of effect NoSchedule, by key; one that is absent stays as it is.
	Taints map[string]bool
	// Evict are pods that have GPUs that stay unhealthy; EvictReason is for their Events.
	Evict       []*corev1.Pod
	EvictReason string
}

// Desired decides what the Node should show of a round.
func Desired(r *Round) *Status {
	short := Shortages(r)
	s := &Status{
		Notices:    map[string]health.NodeEvent{},
		Conditions: []health.Condition{health.ConditionOf(short), modeCondition(r), rejectsCondition(r)},
		Taints:     map[string]bool{},
		Annotations: map[string]string{
			wellknown.GPUReleaseStatus: releaseAnnotation(r), wellknown.HCACounts: hcaCounts(r),
		},
	}
	for _, one := range short {
		// Health sends separate Events about single devices.
		if one.Cause == NothingToOffer {
			s.Notices[one.Resource] = health.NodeEvent{
				Warning: true, Reason: string(NothingToOffer), Message: one.Resource + ": " + one.Message,
			}
		}
	}
	s.freeGPUs(r)
	if r.Usage.NodeKnown {
		s.Taints[wellknown.RejectsPods] = r.Rejects.Phase == breaker.Withdrawn || r.Rejects.Probed
	}
	s.remedy(r)
	return s
}

// The reasons of [wellknown.ConditionModes].
const (
	reasonPending    = "ModePending"
	reasonConfigured = "AsConfigured"
)

// modeCondition names the GPUs with another mode than the configuration asks for,
// and what they wait for.
func modeCondition(r *Round) health.Condition {
	var parts []string
	for i := range r.Modes {
		if text := r.Modes[i].Pending(); text != "" {
			parts = append(parts, text)
		}
	}
	c := health.Condition{
		Type: wellknown.ConditionModes, Reason: reasonConfigured, Message: "every GPU is allocated as configured",
		Optional: true,
	}
	if len(parts) > 0 {
		c.True, c.Reason, c.Message = true, reasonPending, wellknown.ClipTo(strings.Join(parts, "; "), health.MaxMessage)
	}
	return c
}

// rejectsCondition is [wellknown.ConditionRejects].
func rejectsCondition(r *Round) health.Condition {
	s := r.Rejects
	c := health.Condition{
		Type: wellknown.ConditionRejects, True: s.Failing(), Reason: "PodsStart", Message: "pods with devices start",
		Optional: true,
	}
	if !c.True {
		return c
	}
	switch s.Phase {
	case breaker.Withdrawn:
		c.Reason, c.Message = "Withdrawn", "all devices are withdrawn until "+
			s.Until(r.Inventory.Config.Health.ProbeAfter).UTC().Format(time.RFC3339)
	case breaker.Probing:
		c.Reason, c.Message = "Probing", "the next pod is a probe"
	case breaker.InService:
		c.Reason, c.Message = "InService", "the node stays in service: "+s.Kept
	}
	c.Message = wellknown.ClipTo(c.Message+". "+s.String(), health.MaxMessage)
	return c
}

// freeGPUs adds which whole GPUs are free, and how well they go together, for
// schedulers.
func (s *Status) freeGPUs(r *Round) {
	name := r.Inventory.Config.Resources.GPU
	held, known := r.Usage.Holders[name]
	if !known {
		return
	}
	whole := r.Served[name].GPUs
	all := whole.Free(held)
	for _, other := range r.gpuResources() {
		if other == name || r.Usage.Holders[other] == nil {
			continue
		}
		if all.Others == nil {
			all.Others, all.Resource = map[string]allocation.FreeGPUs{}, name
		}
		all.Others[other] = *r.Served[other].GPUs.Free(r.Usage.Holders[other])
	}
	s.Annotations[wellknown.GPUTopology], s.Annotations[wellknown.FreeGPUs] = whole.Annotation(held), all.String()
	if r.Inventory.Config.Domains.Vendor == wellknown.MetaX {
		s.Annotations[wellknown.MetaXScores], s.Annotations[wellknown.MetaXLosses] = whole.MetaX(held)
	}
}

// gpuResources returns the served resources of whole GPUs: the configured one, and those
// of other vendors; none while the configured one is not served.
func (r *Round) gpuResources() []string {
	c := r.Inventory.Config
	if r.Served[c.Resources.GPU].GPUs == nil {
		return nil
	}
	names := []string{c.Resources.GPU}
	for i := range r.Inventory.Machine.GPUs {
		name := c.GPUResource(&r.Inventory.Machine.GPUs[i])
		if r.Served[name].GPUs != nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// hcaCounts returns the number of HCAs that one container can have, for schedulers; empty for a
// node without such resources. Capacity cannot show it, since it has a place for each container
// that shares an HCA. With count distinct an unhealthy HCA counts, as a container starts with the
// remaining ones; with strict it does not. With count all, a request is not for a number of HCAs.
func hcaCounts(r *Round) string {
	counts := allocation.HCACounts{Version: allocation.Version, HCAs: map[string]int{}}
	for i := range r.Inventory.Config.RDMA.Resources {
		entry := &r.Inventory.Config.RDMA.Resources[i]
		if entry.Count == config.CountAll {
			continue
		}
		members := r.members(entry)
		if entry.Count == config.CountStrict {
			members = slices.DeleteFunc(members, func(h allocate.Member) bool { return h.Unhealthy != "" })
		}
		counts.HCAs[entry.Name] = len(members)
	}
	if len(counts.HCAs) == 0 {
		return ""
	}
	return counts.String()
}

// releaseAnnotation returns the answer to a request for a release; empty without one.
func releaseAnnotation(r *Round) string {
	if r.Usage.Release == nil {
		return ""
	}
	text, _ := json.Marshal(r.Usage.Release) // It has strings, numbers and a time of this century.
	return string(text)
}

// The causes that are not about the health of a device.
const (
	// NothingToOffer is a resource without any device.
	NothingToOffer health.Cause = wellknown.EventNothingToOffer
	// Unsuitable marks a GPU that the configuration has no use for, such as a GPU with MIG under
	// migStrategy none.
	Unsuitable health.Cause = "Unsuitable"
	// Draining is a GPU that a container has under another name, which it had in an
	// earlier configuration.
	Draining health.Cause = "Draining"
	// ServedByOthers is a resource that is left to another device plugin.
	ServedByOthers health.Cause = "ServedByOthers"
	// Cordoned is a GPU that an operator cordoned.
	Cordoned health.Cause = "Cordoned"
	// Released is a GPU that an operator has released.
	Released health.Cause = "Released"
	// StateUnwritable is a device that cannot be allocated because that could not be
	// recorded.
	StateUnwritable health.Cause = "StateUnwritable"
	// RejectsPods is a device of a node that is withdrawn.
	RejectsPods health.Cause = "RejectsPods"
)

// Shortages returns the devices that no pod can get, and why: unhealthy ones, resources
// without any device, and those that another plugin serves. A node without a GPU is
// not short of GPUs, and one without an HCA is not short of HCAs: one configuration
// is for nodes of every kind.
func Shortages(r *Round) []health.Shortage {
	m, c := r.Inventory.Machine, r.Inventory.Config
	var all []health.Shortage
	cpuOnly, withoutHCAs := capacity.CPUOnly(m, r.Vendors), capacity.WithoutHCAs(c.WithRoles(m))
	if r.WithoutShares != "" && !cpuOnly {
		all = append(all, health.Shortage{Resource: c.Resources.SGPU, Cause: NothingToOffer, Message: r.WithoutShares})
	}
	for _, offer := range capacity.Of(m, c, r.Vendors) {
		if !slices.Contains(r.Wanted, offer.Name) {
			continue // Another daemon serves it.
		}
		short := health.Shortages(offer.Name, r.states(offer.Name))
		need := !cpuOnly && !allShared(m, c, offer.Name) && (c.RDMA.Resource(offer.Name) == nil || !withoutHCAs)
		if len(short) == 0 && offer.Count == 0 && need {
			short = []health.Shortage{{Resource: offer.Name, Cause: NothingToOffer, Message: offer.Reason}}
		}
		if s := r.Served[offer.Name].Status; !s.Registered && s.Owner != "" {
			short = append(short, health.Shortage{
				Resource: offer.Name, Cause: ServedByOthers, Message: "it is left to " + s.Owner,
			})
		}
		all = append(all, short...)
	}
	return all
}

// allShared reports whether the configuration shares all GPUs of a resource, or has them for
// claims: then nothing is missing.
func allShared(m *machine.Machine, c *config.NodeConfig, resource string) bool {
	return resource == c.Resources.GPU && len(m.GPUs) > 0 &&
		!slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool {
			return c.GPUResource(&g) == resource && inventory.Wanted(c, &g) == config.ModeNative
		})
}

// states returns the states of a resource's devices, by the names that users see.
func (r *Round) states(name string) map[string]health.State {
	c, states := r.Inventory.Config, map[string]health.State{}
	s, served := r.Served[name]
	switch entry := c.RDMA.Resource(name); {
	case entry != nil:
		r.addHCAs(states, entry)
	case s.GPUs != nil:
		r.addGPUs(states, name)
	case served && name == c.Resources.SGPU:
		for i := range r.Inventory.Shared {
			g := &r.Inventory.Shared[i]
			if state, moves := r.gpuState(g.UUID, g.Unhealthy); !moves {
				states[fmt.Sprintf("GPU%d", g.Index)] = state
			}
		}
	}
	for id, label := range r.Seen[name] {
		if state, known := r.missing(id); known {
			states[label] = state
		}
	}
	if why := r.Inventory.Unavailable; why != "" {
		cause := StateUnwritable
		if why == r.Rejects.String() {
			cause = RejectsPods
		}
		for label, state := range states {
			if state.Reason == why {
				states[label] = health.State{Cause: cause, Reason: why}
			}
		}
	}
	return states
}

func (r *Round) addGPUs(states map[string]health.State, name string) {
	s := r.Served[name].GPUs
	for _, id := range s.IDs() {
		fault := s.Faults()[id]
		state, moves := r.gpuState(cmp.Or(r.Inventory.Machine.ParentGPU(id), id), fault)
		if moves {
			continue
		}
		if state.Cause == Unsuitable && fault == r.Inventory.Elsewhere[name][id] {
			state.Cause = Draining
		}
		states[r.label(id)] = state
	}
}

func (r *Round) addHCAs(states map[string]health.State, entry *config.RDMAResource) {
	for _, member := range r.members(entry) {
		state := r.Health.HCA(member.ID)
		switch {
		case member.Unhealthy == "":
			state = health.State{Healthy: true} // Also a virtual function with a port that no pod has set up.
		case state.Healthy:
			state = health.State{Cause: Unsuitable, Reason: member.Unhealthy}
		}
		states[r.Inventory.Machine.HCAs[member.Index].Name] = state
	}
}

// gpuState returns the state of a GPU that no new pod gets for a reason: it is unhealthy,
// released or cordoned, or the configuration has no use for it. Another condition
// shows a GPU that moves to another resource.
func (r *Round) gpuState(uuid, reason string) (state health.State, moves bool) {
	if reason == "" {
		return health.State{Healthy: true}, false
	}
	if state = r.Health.GPU(uuid); !state.Healthy {
		return state, false
	}
	at := slices.IndexFunc(r.Modes, func(g gpumode.GPU) bool { return g.UUID == uuid })
	switch {
	case reason == release.Reason:
		return health.State{Cause: Released, Reason: reason}, false
	case at >= 0 && r.Modes[at].Cordoned:
		return health.State{Cause: Cordoned, Reason: gpumode.Cordoned}, false
	case at >= 0 && r.Modes[at].Until != "":
		return state, true
	}
	return health.State{Cause: Unsuitable, Reason: reason}, false
}
