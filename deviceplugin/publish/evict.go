package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// This file decides which pods a node evicts so that they are scheduled again. Which
// pods over their share are evicted is sharing/enforce's; deviceplugin/apiserver evicts.

// hcasRejectedFor is how long a pod may wait for HCAs that a resource with count strict
// does not have.
const hcasRejectedFor = time.Minute

// RejectedPod is a pod that has been rejected for too long.
type RejectedPod struct {
	Pod *corev1.Pod
	// Event is the reason of the Event, Message its text.
	Event, Message string
}

// Rejected returns the pods that have waited too long for a GPU or for HCAs: those that a controller would replace
// elsewhere, and those without a controller that can never start here. The kubelet counts what they hold.
func Rejected(
	c *config.NodeConfig, pods []*corev1.Pod, rejections []report.Rejection, now time.Time,
) []RejectedPod {
	var all []RejectedPod
	for i := range rejections {
		r := &rejections[i]
		patience, event, resources := c.SGPU.RejectedFor, wellknown.EventSGPUEvicted, []string{c.Resources.SGPU}
		if r.Kind == allocate.RejectedHCAs {
			patience, event, resources = hcasRejectedFor, wellknown.EventHCAEvicted, nil
			for i := range c.RDMA.Resources {
				resources = append(resources, c.RDMA.Resources[i].Name)
			}
		}
		at := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return string(p.UID) == r.UID })
		if at < 0 || patience <= 0 || now.Sub(r.Since) < patience || !idle(pods[at], resources...) {
			continue
		}
		// The next pod of a controller would ask for the same.
		elsewhere := replaced(pods[at]) && r.Kind != allocate.RejectedRequest && r.Kind != allocate.RejectedChannels
		if !elsewhere && (!r.Never || !bare(pods[at])) {
			continue
		}
		message := fmt.Sprintf("rejected for %s: %s", patience, r.Reason)
		all = append(all, RejectedPod{Pod: pods[at], Event: event, Message: message})
	}
	return all
}

// idle reports whether no container with one of the resources has started. Other containers may have started: an
// injected sidecar does not wait for the rejected container.
func idle(p *corev1.Pod, resources ...string) bool {
	started := func(s corev1.ContainerStatus) bool {
		ran := s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
		return (ran || s.RestartCount > 0) && asks(p, s.Name, resources)
	}
	return p.Status.Phase == corev1.PodPending &&
		!slices.ContainsFunc(slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses), started)
}

// replaced reports whether a controller would replace an evicted pod on another node: not so a static pod, one
// of a DaemonSet, and one that is terminating already.
func replaced(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return p.DeletionTimestamp == nil && owner != nil && !mirror && owner.Kind != "Node" && owner.Kind != "DaemonSet"
}

// bare reports whether a pod has no controller, is not static and not terminating already.
func bare(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return p.DeletionTimestamp == nil && metav1.GetControllerOf(p) == nil && !mirror
}

func asks(p *corev1.Pod, container string, resources []string) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool {
		return c.Name == container && slices.ContainsFunc(resources, func(name string) bool {
			_, ok := c.Resources.Limits[corev1.ResourceName(name)]
			return ok
		})
	})
}

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
	policy := &r.Inventory.Config.Health
	todo := health.RemedyOf(policy, r.servedHealth(), r.Usage.Tainted, r.Usage.At)
	s.Taints[wellknown.UnhealthyGPU] = todo.Cordon
	if todo.Cordon != r.Usage.Tainted {
		s.Notices[wellknown.UnhealthyGPU] = taintNotice(policy, &todo)
	}
	var left []string
	if policy.Remediation == config.RemediationDrain && len(todo.Faulty) > 0 {
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

func taintNotice(policy *config.Health, todo *health.Remedy) health.NodeEvent {
	notice := health.NodeEvent{Reason: wellknown.EventRemediationEnded}
	switch {
	case todo.Cordon:
		notice.Warning, notice.Reason = true, wellknown.EventRemediationStarted
		notice.Message = fmt.Sprintf(
			"the Node has the taint %s, by policy %s: %s", wellknown.UnhealthyGPU, policy.Remediation, todo.Message)
	case policy.Remediation == config.RemediationNone:
		notice.Message = fmt.Sprintf("the taint %s is removed: the remediation policy is none", wellknown.UnhealthyGPU)
	default:
		notice.Message = fmt.Sprintf(
			"the taint %s is removed: all GPUs have been healthy for %s", wellknown.UnhealthyGPU, policy.RemediateAfter)
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
func remedyCondition(node string, policy *config.Health, todo *health.Remedy, left []string) health.Condition {
	c := health.Condition{
		Type: wellknown.ConditionRemediation, True: todo.Cordon, Reason: reasonNotNeeded,
		Message: "no GPU stays unhealthy, or the policy is none", Optional: true,
	}
	if !todo.Cordon {
		return c
	}
	c.Message = cmp.Or(todo.Message, fmt.Sprintf(
		"all GPUs are healthy: the taint goes once that has lasted %s", policy.RemediateAfter))
	switch {
	case todo.Message == "":
		c.Reason = reasonRecovering
	case policy.Remediation == config.RemediationCordon || len(todo.Faulty) == 0:
		c.Reason = reasonCordoned
	case len(left) > 0:
		c.Reason = reasonDraining
		c.Message += ". Pods that have it: " + strings.Join(left[:min(len(left), shownPods)], ", ")
		if more := len(left) - shownPods; more > 0 {
			c.Message += fmt.Sprintf(" and %d more", more)
		}
	default:
		c.Reason = reasonDrained
		c.Message += ". No pod has it: heddle gpu release " + node
		for _, uuid := range todo.Faulty {
			c.Message += " " + uuid
		}
	}
	c.Message = wellknown.ClipTo(c.Message, health.MaxMessage)
	return c
}
