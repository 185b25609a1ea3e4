// Package sgpu schedules shares of GPUs: it computes the free parts of a node's shared GPUs and
// chooses the GPUs of a pod.
//
// It owns the order in which sources are believed. A Node's annotation lists its shared GPUs and
// their health; the amounts taken are counted from the pods on the node: what the node bound
// (heddle.dev/sgpu-bound) before what a scheduler decided (heddle.dev/sgpu-allocation) before what
// this scheduler has decided and not bound yet. Annotations choose GPUs, the pod's limits the
// amounts; an annotation with other amounts is ignored. The node's own count is the lower bound if
// a pod has none of these, or claims what the node does not count. Package sharing/quota decides
// which GPU is best.
//
// For whole GPUs it knows which ones a node publishes as free, for pods that
// select GPUs by UUID.
package sgpu

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Scheduler schedules shares. It is safe for concurrent use.
type Scheduler struct {
	// configs are under the names of each maker.
	configs   []*config.NodeConfig
	gpus      GPUs
	placement config.Placement

	log     *slog.Logger
	ignored *prometheus.CounterVec

	// states has a nodeState by the name of the node.
	states sync.Map
	// decisions holds the decisions by pod UID until the pod's annotation shows them.
	decisions sync.Map
}

// New returns a scheduler. c has the names of resources and annotations, and the placement of pods that have no
// preference. ignored counts annotations by key.
func New(c *config.NodeConfig, log *slog.Logger, ignored *prometheus.CounterVec) *Scheduler {
	s := &Scheduler{configs: c.Each(), placement: c.SGPU.Placement, log: log, ignored: ignored}
	for _, c := range s.configs {
		s.gpus = append(s.gpus, corev1.ResourceName(c.Resources.GPU))
	}
	return s
}

// GPUs lists the resource names of whole GPUs, one for each vendor.
type GPUs []corev1.ResourceName

// GPUs returns the resource names of whole GPUs.
func (s *Scheduler) GPUs() GPUs { return s.gpus }

// In returns the name that is among amounts, or the first. A pod has GPUs of one vendor.
func (g GPUs) In(amounts map[corev1.ResourceName]int64) corev1.ResourceName {
	for _, name := range g {
		if amounts[name] > 0 {
			return name
		}
	}
	return g[0]
}

// names returns the configuration with the names of the vendor that the pod requests, or of the
// first vendor.
func (s *Scheduler) names(pod *corev1.Pod) *config.NodeConfig {
	for _, c := range s.configs {
		for _, of := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
			for name := range of.Resources.Limits {
				if strings.HasPrefix(string(name), c.Domains.Vendor+"/") {
					return c
				}
			}
		}
	}
	return s.configs[0]
}

// Filter rejects a node without room for a request.
func (s *Scheduler) Filter(r *Request, info framework.NodeInfo) *framework.Status {
	left := s.state(info).left
	if left == nil {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) have no shared GPUs")
	}
	if _, reason := r.place(slices.Clone(left), s.placement); reason != "" {
		return framework.NewStatus(framework.Unschedulable, "node(s) have no shared GPU with room: "+reason)
	}
	return r.uncounted(info)
}

// uncounted rejects a node with a kubelet that would reject the pod: it counts vcore and vmemory of all pods of the
// node, also of those that have no share of a GPU.
func (r *Request) uncounted(info framework.NodeInfo) *framework.Status {
	allocatable, requested := info.GetAllocatable().GetScalarResources(), info.GetRequested().GetScalarResources()
	for name, needs := range r.counted {
		if most, counts := allocatable[name]; counts && requested[name]+needs > most {
			left := max(most-requested[name], 0)
			return framework.NewStatus(framework.Unschedulable, fmt.Sprintf(
				"node(s) have no %s left that their kubelet counts: %d of %d; needs %d", name, left, most, needs))
		}
	}
	return nil
}

// Reserve decides which GPUs of a node a pod gets.
func (s *Scheduler) Reserve(r *Request, pod *corev1.Pod, info framework.NodeInfo) *framework.Status {
	shares, reason := r.place(slices.Clone(s.state(info).left), s.placement)
	if reason != "" {
		return framework.NewStatus(framework.Unschedulable, reason)
	}
	s.Restore(pod.UID, &allocation.Allocation{Version: allocation.Version, Node: info.Node().Name, Containers: shares})
	return nil
}

// Restore makes a decision that was made before.
func (s *Scheduler) Restore(pod types.UID, decision *allocation.Allocation) {
	s.decisions.Store(pod, decision)
}

// Decision returns the decision for a pod, or nil.
func (s *Scheduler) Decision(pod types.UID) *allocation.Allocation {
	decision, _ := s.decisions.Load(pod)
	a, _ := decision.(*allocation.Allocation)
	return a
}

// Release takes a decision back; for pods that are gone, too.
func (s *Scheduler) Release(pod types.UID) { s.decisions.Delete(pod) }

// Bind binds a pod that shares GPUs, with the decision in the Binding: the API
// server writes both or neither. Other pods are left to the next plugin.
func (s *Scheduler) Bind(
	ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, node string,
) *framework.Status {
	decision := s.Decision(pod.UID)
	if decision == nil || decision.Node != node {
		return framework.NewStatus(framework.Skip)
	}
	err := client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: map[string]string{wellknown.SGPUAllocation: decision.String()},
		},
		Target: corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return framework.AsStatus(fmt.Errorf("bind %s to %s: %w", pod.Name, node, err))
	}
	return nil
}
