package publish

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/health"
)

// Status is the desired content of the Node.
type Status struct {
	// Notices holds Events by subject. An Event is sent when it appears here.
	Notices    map[string]health.NodeEvent
	Conditions []health.Condition
	// Annotations are the Node's; an empty value removes one, and one that is absent
	// here stays as it is.
	Annotations map[string]string
	// Taint is whether the Node should have the taint [wellknown.UnhealthyGPU]; nil leaves it as it is.
	Taint *bool
	// Evict are pods that have GPUs that stay unhealthy; EvictReason is for their Events.
	Evict       []*corev1.Pod
	EvictReason string
}

// Desired decides what the Node should show of a round.
func Desired(r *Round) *Status {
	short := Shortages(r)
	s := &Status{
		Notices:    map[string]health.NodeEvent{},
		Conditions: []health.Condition{health.ConditionOf(short), modeCondition(r)},
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
		c.True, c.Reason, c.Message = true, reasonPending, health.Cut(strings.Join(parts, "; "))
	}
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
