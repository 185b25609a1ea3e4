package claims

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Why returns what a node lacks for a pod with a demand: the request, and the selector, capacity or constraint that
// fails. It is empty if the node takes the pod.
func (n *Node) Why(node *corev1.Node, d *Demand) string {
	switch {
	case len(d.claims) == 0:
		return ""
	case n == nil:
		return "no devices for claims"
	case n.trial(node, nil).take(d):
		return ""
	}
	t := n.trial(node, nil)
	for i, claim := range d.claims {
		if why := t.whyClaim(claim); why != "" {
			return fmt.Sprintf("claim %q, %s", d.names[i], why)
		}
		t.take(&Demand{claims: d.claims[i : i+1]}) // The next claims are beside it.
	}
	return "its claims together need more devices than are free"
}

// whyClaim explains a claim, request by request, then all of them without constraints, then with each alone.
func (t *trial) whyClaim(claim *resourceapi.ResourceClaim) string {
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		var reasons []string
		for _, one := range alternatives(r) {
			reasons = append(reasons, t.whyRequest(&one))
		}
		if !slices.Contains(reasons, "") {
			return fmt.Sprintf("request %q: %s", r.Name, strings.Join(reasons, "; "))
		}
	}
	constraints := claim.Spec.Devices.Constraints
	with := claim.DeepCopy()
	with.Spec.Devices.Constraints = nil
	if !t.meets(with) {
		return "requests together: too few devices are free"
	}
	var failing []string
	for i := range constraints {
		with.Spec.Devices.Constraints = constraints[i : i+1]
		if len(constraints) == 1 || !t.meets(with) {
			failing = append(failing, constraintText(&constraints[i]))
		}
	}
	if with.Spec.Devices.Constraints = constraints; t.meets(with) {
		return ""
	}
	return "no free devices meet " + cmp.Or(strings.Join(failing, " and "), "all constraints")
}

func constraintText(c *resourceapi.DeviceConstraint) string {
	kind, attribute := "matchAttribute", c.MatchAttribute
	if attribute == nil {
		kind, attribute = "distinctAttribute", c.DistinctAttribute
	}
	if attribute == nil {
		return "a constraint of an unknown kind"
	}
	text := fmt.Sprintf("constraint %s %s", kind, *attribute)
	if len(c.Requests) > 0 {
		text += " of requests " + strings.Join(c.Requests, ", ")
	}
	return text
}

// alternatives returns the alternatives of a request. One of them is enough.
func alternatives(r *resourceapi.DeviceRequest) (all []resourceapi.ExactDeviceRequest) {
	if r.Exactly != nil {
		all = append(all, *r.Exactly)
	}
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		all = append(all, resourceapi.ExactDeviceRequest{
			DeviceClassName: s.DeviceClassName, Selectors: s.Selectors, AllocationMode: s.AllocationMode, Count: s.Count,
			Tolerations: s.Tolerations, Capacity: s.Capacity,
		})
	}
	return all
}

// whyRequest adds the parts of a request one after another, and returns the first that leaves too few devices.
func (t *trial) whyRequest(r *resourceapi.ExactDeviceRequest) string {
	idle := &trial{Node: t.Node, node: t.node, slices: t.slices, state: NewState()}
	probe := resourceapi.ExactDeviceRequest{
		DeviceClassName: r.DeviceClassName,
		Tolerations:     []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}},
	}
	need, of := max(1, r.Count), idle.most(&probe)
	requested := ""
	if need > 1 {
		requested = fmt.Sprintf(", %d requested", need)
	}
	if of < need {
		return fmt.Sprintf("%d devices of DeviceClass %s%s", of, r.DeviceClassName, requested)
	}
	lacks := func(on *trial, what string) string {
		before := of
		if of = on.most(&probe); of < need {
			return fmt.Sprintf("%d of %d devices %s%s", of, before, what, requested)
		}
		return ""
	}
	for _, s := range r.Selectors {
		probe.Selectors = append(probe.Selectors, s)
		if s.CEL != nil {
			if why := lacks(idle, "match selector "+s.CEL.Expression); why != "" {
				return why
			}
		}
	}
	probe.Tolerations = r.Tolerations
	if why := lacks(idle, "have no taint that it does not tolerate"); why != "" {
		return why
	}
	if probe.Capacity = r.Capacity; r.Capacity != nil {
		if why := lacks(idle, "have capacity "+capacities(r.Capacity)); why != "" {
			return why
		}
		return lacks(t, "have capacity "+capacities(r.Capacity)+" free")
	}
	return lacks(t, "free")
}

func capacities(c *resourceapi.CapacityRequirements) string {
	parts := make([]string, 0, len(c.Requests))
	for _, name := range slices.Sorted(maps.Keys(c.Requests)) {
		q := c.Requests[name]
		parts = append(parts, string(name)+" "+q.String())
	}
	return strings.Join(parts, ", ")
}

// most returns how many devices a request could have at once.
func (t *trial) most(r *resourceapi.ExactDeviceRequest) (n int64) {
	claim := &resourceapi.ResourceClaim{}
	for n < resourceapi.AllocationResultsMaxSize {
		one := *r
		one.AllocationMode, one.Count = resourceapi.DeviceAllocationModeExactCount, n+1
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "devices", Exactly: &one}}
		if !t.meets(claim) {
			break
		}
		n++
	}
	return n
}

// meets reports whether a claim gets devices.
func (t *trial) meets(claim *resourceapi.ResourceClaim) bool {
	results, err := t.allocate(t, []*resourceapi.ResourceClaim{claim})
	return err == nil && len(results) > 0
}
