// Package sgpu schedules shares of GPUs: what the shared GPUs of a node have
// left, and which of them a pod gets.
//
// It owns the order in which sources are believed. A Node's annotation lists its
// shared GPUs and their health; what is taken of them is counted from the pods
// on the node: what the node bound (heddle.dev/sgpu-bound) before what a scheduler
// decided (heddle.dev/sgpu-allocation) before what this scheduler has decided and
// not bound yet. The node's own count is the lower bound if a pod has none of
// these. Which GPU is best is decided by sharing/quota.
//
// For whole GPUs it knows which ones a node publishes as free, for pods that
// select GPUs by UUID.
package sgpu

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Scheduler schedules shares. It is safe for concurrent use.
type Scheduler struct {
	config    *config.NodeConfig
	placement config.Placement

	published AnnotationCache[[]quota.GPU]
	free      FreeGPUs
	topology  AnnotationCache[topology]
	// states are by node.
	states sync.Map

	mu sync.Mutex
	// decisions are of pods on whose annotation they are not seen yet.
	decisions map[types.UID]*allocation.Allocation
}

// New returns a scheduler. c has the names of resources and annotations, placement
// is for pods that have no preference.
func New(c *config.NodeConfig, placement config.Placement) *Scheduler {
	return &Scheduler{
		config: c, placement: placement, free: FreeGPUs{Domains: c.Domains},
		decisions: map[types.UID]*allocation.Allocation{},
	}
}

// Request is what a pod requests; nil if nothing.
func (s *Scheduler) Request(pod *corev1.Pod) (*Request, error) {
	r, err := parseRequest(pod, s.config)
	if errors.Is(err, quota.ErrNoShare) {
		return nil, nil //nolint:nilnil // Most pods request no share, which is no error.
	}
	if err == nil {
		err = r.readPlacement(pod.Annotations)
	}
	return r, err
}

// Selector is which whole GPUs a pod accepts; nil for any.
func (s *Scheduler) Selector(pod *corev1.Pod) (*Selector, error) {
	return s.free.Selector(pod.Annotations)
}

// Concerns reports whether a pod's place depends on its shares or its selector.
func (s *Scheduler) Concerns(pod *corev1.Pod) bool {
	d := s.config.Domains
	for _, key := range []string{
		d.UseGPUUUID(), d.NoUseGPUUUID(), wellknown.UseGPUUUIDAlias, wellknown.NoUseGPUUUIDAlias,
	} {
		if pod.Annotations[key] != "" {
			return true
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, name := range []string{d.SGPUResource(), d.VCoreResource(), d.VMemoryResource()} {
				if _, ok := list[i].Resources.Limits[corev1.ResourceName(name)]; ok {
					return true
				}
			}
		}
	}
	return false
}

// Filter rejects a node without room for a request.
func (s *Scheduler) Filter(r *Request, info framework.NodeInfo) *framework.Status {
	switch _, reason, err := s.try(r, info); {
	case err != nil:
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) have no shared GPUs")
	case reason != "":
		return framework.NewStatus(framework.Unschedulable, "node(s) have no shared GPU with room: "+reason)
	}
	return nil
}

// Reserve decides which GPUs of a node a pod gets.
func (s *Scheduler) Reserve(r *Request, pod *corev1.Pod, info framework.NodeInfo) *framework.Status {
	free, err := s.left(info)
	if err != nil {
		return framework.NewStatus(framework.Unschedulable, "node has no shared GPUs any more")
	}
	shares, reason := r.place(free, s.placement)
	if reason != "" {
		return framework.NewStatus(framework.Unschedulable, reason)
	}
	s.Restore(pod.UID, &allocation.Allocation{Version: allocation.Version, Node: info.Node().Name, Containers: shares})
	return nil
}

// Restore makes a decision that was made before.
func (s *Scheduler) Restore(pod types.UID, decision *allocation.Allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decisions[pod] = decision
}

// Decision is what was decided for a pod; nil if nothing.
func (s *Scheduler) Decision(pod types.UID) *allocation.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decisions[pod]
}

// Release takes a decision back; for pods that are gone, too.
func (s *Scheduler) Release(pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.decisions, pod)
}

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

// ForgetNode is for nodes that are gone.
func (s *Scheduler) ForgetNode(node string) {
	s.published.Forget(node)
	s.free.nodes.Forget(node)
	s.topology.Forget(node)
	s.states.Delete(node)
}

// load is how full GPUs are, 0 to 100: the mean of compute and memory taken.
func load(gpus []quota.GPU) int64 {
	if len(gpus) == 0 {
		return 0
	}
	sum := int64(0)
	for i := range gpus {
		g := &gpus[i]
		sum += min(int64(g.VCore), quota.Whole)
		if g.MemoryMiB > 0 {
			sum += min(100*g.UsedMiB/g.MemoryMiB, 100)
		} else if g.Consumers > 0 {
			sum += 100
		}
	}
	return sum / int64(2*len(gpus))
}
