package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
)

// The reasons of [wellknown.ConditionRemediation].
const (
	// reasonNotNeeded: no GPU stays unhealthy, or the policy is none.
	reasonNotNeeded = "NotNeeded"
	// reasonCordoned: the policy is cordon, or no GPU has been unhealthy for long
	// enough since the plugin started.
	reasonCordoned = "Cordoned"
	// reasonDraining: pods still have the GPUs; reasonDrained: none has.
	reasonDraining = "Draining"
	reasonDrained  = "Drained"
	// reasonRecovering: all GPUs are healthy, not yet for long enough.
	reasonRecovering = "Recovering"
)

// shownPods bounds the pods named in the condition.
const shownPods = 5

// remedy adds the measures for GPUs that stay unhealthy, by the policy: a taint, and evictions. While GPUs are
// released to an operator, or the Node is unknown, nothing changes.
func (s *Status) remedy(r *Round) {
	if !r.Usage.NodeKnown || r.Health.Machine == nil || !r.Release.Until.IsZero() {
		return
	}
	policy := r.Inventory.Config.Health.Remediation
	todo := health.RemedyOf(policy, r.servedHealth(), r.Usage.Tainted, r.Usage.At)
	s.Taint = &todo.Cordon
	if todo.Cordon != r.Usage.Tainted {
		s.Notices[wellknown.UnhealthyGPU] = taintNotice(policy, &todo)
	}
	var left []string
	if policy.Policy == config.RemediationDrain && len(todo.Faulty) > 0 {
		left, s.Evict = r.drain(todo.Faulty)
		s.EvictReason = "a GPU of the pod stays unhealthy: " + todo.Message
	}
	s.Conditions = append(s.Conditions, remedyCondition(r.Node, policy, &todo, left))
}

// servedHealth leaves out GPUs that the node does not serve. One that is gone was served.
func (r *Round) servedHealth() *health.Snapshot {
	served := &health.Snapshot{Machine: r.Health.Machine, GPUs: maps.Clone(r.Health.GPUs)}
	for i := range served.Machine.GPUs {
		if uuid := served.Machine.GPUs[i].UUID; gpuAt(r.Inventory.Machine, uuid) < 0 {
			delete(served.GPUs, uuid)
		}
	}
	return served
}

func taintNotice(policy config.Remediation, todo *health.Remedy) health.NodeEvent {
	notice := health.NodeEvent{Reason: wellknown.EventRemediationEnded}
	switch {
	case todo.Cordon:
		notice.Warning, notice.Reason = true, wellknown.EventRemediationStarted
		notice.Message = fmt.Sprintf(
			"the Node has the taint %s, by policy %s: %s", wellknown.UnhealthyGPU, policy.Policy, todo.Message)
	case policy.Policy == config.RemediationNone:
		notice.Message = fmt.Sprintf("the taint %s is removed: the policy of remediation is none", wellknown.UnhealthyGPU)
	default:
		notice.Message = fmt.Sprintf(
			"the taint %s is removed: all GPUs have been healthy for %s", wellknown.UnhealthyGPU, policy.After)
	}
	return notice
}

// drain lists the pods with faulty GPUs, and among them the pods to evict, which a controller would
// replace on another node.
func (r *Round) drain(faulty []string) (left []string, evict []*corev1.Pod) {
	for _, holder := range holders(r, release.Request{GPUs: faulty}) {
		name := holder.Namespace + "/" + holder.Name
		if slices.Contains(left, name) {
			continue
		}
		left = append(left, name)
		for _, p := range r.Usage.Pods {
			if p.Namespace == holder.Namespace && p.Name == holder.Name && replaced(p) {
				evict = append(evict, p)
			}
		}
	}
	return left, evict
}

// remedyCondition is [wellknown.ConditionRemediation]. left are the pods that still
// have faulty GPUs.
func remedyCondition(node string, policy config.Remediation, todo *health.Remedy, left []string) health.Condition {
	c := health.Condition{
		Type: wellknown.ConditionRemediation, True: todo.Cordon, Reason: reasonNotNeeded,
		Message: "no GPU stays unhealthy, or the policy is none", Optional: true,
	}
	if !todo.Cordon {
		return c
	}
	c.Message = cmp.Or(todo.Message, fmt.Sprintf(
		"all GPUs are healthy: the taint goes once that has lasted %s", policy.After))
	switch {
	case todo.Message == "":
		c.Reason = reasonRecovering
	case policy.Policy == config.RemediationCordon || len(todo.Faulty) == 0:
		c.Reason = reasonCordoned
	case len(left) > 0:
		c.Reason = reasonDraining
		c.Message += ". Pods that have it: " + strings.Join(left[:min(len(left), shownPods)], ", ")
		if more := len(left) - shownPods; more > 0 {
			c.Message += fmt.Sprintf(" and %d more", more)
		}
	default:
		c.Reason = reasonDrained
		c.Message += ". No pod has it: heddle gpu release --node " + node
		for _, uuid := range todo.Faulty {
			c.Message += " --gpu " + uuid
		}
	}
	c.Message = health.Cut(c.Message)
	return c
}
