package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// The reasons of [wellknown.ConditionRemediation].
const (
	// reasonNotNeeded: no GPU stays unhealthy, or the policy is none.
	reasonNotNeeded = "NotNeeded"
	// reasonCordoned: the policy is cordon, or no GPU has been unhealthy for long enough
	// since the plugin started.
	reasonCordoned = "Cordoned"
	// reasonDraining: pods still have the GPUs; reasonDrained: none has.
	reasonDraining = "Draining"
	reasonDrained  = "Drained"
	// reasonRecovering: all GPUs are healthy, not yet for long enough.
	reasonRecovering = "Recovering"
)

// shownPods is how many pods the condition names.
const shownPods = 5

// remediation is the publisher's part that cordons and drains the node.
type remediation struct {
	evictions *rate.Limiter
	active    prometheus.Gauge
	evicted   prometheus.Counter
}

func newRemediation() *remediation {
	return &remediation{
		evictions: rate.NewLimiter(rate.Every(evictEvery), evictBurst),
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_remediation_active",
			Help: "1 while health.remediation has the Node cordoned because a GPU stays unhealthy.",
		}),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_remediation_evicted_pods_total",
			Help: "Pods that health.remediation evicted because their GPU stays unhealthy.",
		}),
	}
}

// remedy does what the policy asks for about GPUs that stay unhealthy, and undoes it
// when they are healthy again. While an operator has the GPUs released nothing changes.
func (p *publisher) remedy(ctx context.Context, now *found, at time.Time) error {
	cordoned, known := p.API.Tainted(wellknown.UnhealthyGPU, corev1.TaintEffectNoSchedule)
	if !known || now.health.Machine == nil || !now.release.Until.IsZero() {
		return nil
	}
	policy := p.config().Health.Remediation
	todo := health.RemedyOf(policy, p.servedHealth(now.health), cordoned, at)
	if todo.Cordon != cordoned {
		if err := p.cordon(ctx, policy, todo); err != nil {
			return err
		}
	}
	p.remediation.active.Set(0)
	if todo.Cordon {
		p.remediation.active.Set(1)
	}
	var left []string
	if policy.Policy == config.RemediationDrain && len(todo.Faulty) > 0 {
		left = p.drain(ctx, todo)
	}
	return p.publishCondition(ctx, remediationCondition(p.NodeName, policy, todo, left))
}

// servedHealth leaves out GPUs that the node does not serve. One that is gone was served.
func (p *publisher) servedHealth(s *health.Snapshot) *health.Snapshot {
	served := &health.Snapshot{Machine: s.Machine, GPUs: maps.Clone(s.GPUs)}
	gpus := p.machine().GPUs
	for i := range s.Machine.GPUs {
		uuid := s.Machine.GPUs[i].UUID
		if !slices.ContainsFunc(gpus, func(g machine.GPU) bool { return g.UUID == uuid }) {
			delete(served.GPUs, uuid)
		}
	}
	return served
}

// cordon adds the taint or takes it away, with an Event.
func (p *publisher) cordon(ctx context.Context, policy config.Remediation, todo health.Remedy) error {
	err := p.API.SetTaint(ctx, wellknown.UnhealthyGPU, corev1.TaintEffectNoSchedule, todo.Cordon)
	if err != nil {
		return err
	}
	event := health.NodeEvent{
		Reason: wellknown.EventRemediationEnded,
		Message: fmt.Sprintf(
			"the taint %s is removed: all GPUs have been healthy for %s", wellknown.UnhealthyGPU, policy.After),
	}
	switch {
	case todo.Cordon:
		event = health.NodeEvent{
			Warning: true, Reason: wellknown.EventRemediationStarted,
			Message: fmt.Sprintf(
				"the Node has the taint %s, by policy %s: %s", wellknown.UnhealthyGPU, policy.Policy, todo.Message),
		}
	case policy.Policy == config.RemediationNone:
		event.Message = fmt.Sprintf("the taint %s is removed: the policy of remediation is none", wellknown.UnhealthyGPU)
	}
	p.Log.InfoContext(ctx, "remediation", "cordoned", todo.Cordon, "policy", policy.Policy, "reason", todo.Message)
	p.API.Record(event)
	return nil
}

// drain evicts the pods that have the faulty GPUs, as far as their budgets and the rate
// allow, and returns those that still have them.
func (p *publisher) drain(ctx context.Context, todo health.Remedy) []string {
	pods, _, _ := p.API.Pods()
	var left []string
	for _, holder := range p.podsWith(ctx, release.Request{GPUs: todo.Faulty}) {
		name := holder.Namespace + "/" + holder.Name
		if slices.Contains(left, name) {
			continue
		}
		left = append(left, name)
		at := slices.IndexFunc(pods, func(q *corev1.Pod) bool {
			return q.Namespace == holder.Namespace && q.Name == holder.Name
		})
		if at < 0 || notReplaced(pods[at]) != "" || !p.remediation.evictions.Allow() {
			continue
		}
		p.evict(ctx, pods[at], todo)
	}
	return left
}

func (p *publisher) evict(ctx context.Context, pod *corev1.Pod, todo health.Remedy) {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	err := p.API.Evict(ctx, key, pod.UID)
	switch {
	case err == nil:
		p.remediation.evicted.Inc()
		p.Log.InfoContext(ctx, "evicted", "pod", key.String(), "reason", todo.Message)
		of := kubelet.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
		p.API.WarnPod(of, wellknown.EventUnhealthyGPUEvicted, "a GPU of the pod stays unhealthy: "+todo.Message)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // It is gone.
	case apierrors.IsTooManyRequests(err): // A PodDisruptionBudget; the condition names the pod.
		p.Log.DebugContext(ctx, "eviction waits for a budget", "pod", key.String(), "err", err)
	default:
		p.Log.WarnContext(ctx, "evicting a pod with an unhealthy GPU failed", "err", err)
	}
}

// remediationCondition is [wellknown.ConditionRemediation]. left are the pods that still
// have faulty GPUs.
func remediationCondition(node string, policy config.Remediation, todo health.Remedy, left []string) health.Condition {
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
