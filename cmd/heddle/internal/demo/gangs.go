package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/placement"
)

// namespace is the namespace of the pods.
const namespace = "demo"

// gang is a job: a number of pods with a number of GPUs each, in one group of a kind.
type gang struct {
	name          string
	pods          int
	gpus          int32
	requiredLevel string
}

// scheduler places gangs as heddle-scheduler's planner does, by topo/placement. The rest
// of that planner, and what kube-scheduler does around it, the filters and the binding, is
// left out: each node has its GPUs and nothing else.
type scheduler struct {
	cluster *cluster
	tree    *placement.Tree
	// free holds the number of free GPUs on each node of the tree.
	free []int32
}

// newScheduler reads the tree from topo-master as heddle-scheduler does. gpus is how many
// each node has.
func newScheduler(ctx context.Context, c *cluster, gpus map[string]int32) (*scheduler, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/node_group", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask topo-master: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask topo-master: %w", err)
	}
	defer resp.Body.Close()
	var groups []v1alpha1.Group
	if err := json.NewDecoder(resp.Body).Decode(&groups); err != nil {
		return nil, fmt.Errorf("decode topo-master's answer: %w", err)
	}
	tree, err := placement.New(groups)
	if err != nil {
		return nil, err
	}
	s := &scheduler{cluster: c, tree: tree, free: make([]int32, tree.Len())}
	for id := range s.free {
		s.free[id] = gpus[tree.Name(int32(id))]
	}
	return s, nil
}

// schedule plans a gang and binds its pods, or gives them the reason why not. It returns
// how long the plan took, and the reason.
func (s *scheduler) schedule(g *gang) (took time.Duration, rejection error) {
	fit := make([]int32, len(s.free))
	for id, free := range s.free {
		fit[id] = free / g.gpus
	}
	start := time.Now()
	plan, rejection := placement.Place(s.tree, &placement.Gang{
		Tasks:   []placement.Task{{Name: "worker", Pods: g.pods, GPUs: int(g.gpus)}},
		Require: g.requiredLevel,
	}, &placement.Capacity{Fit: [][]int32{fit}, Free: s.free})
	took = time.Since(start)
	for rank := range g.pods {
		pod := g.pod(rank, s.cluster.now)
		if rejection == nil {
			node := plan.Nodes[rank]
			s.free[node] -= g.gpus
			pod.Spec.NodeName, pod.Status.Phase = s.tree.Name(node), corev1.PodRunning
			pod.Status.StartTime = &s.cluster.now
		} else {
			pod.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				Message: fmt.Sprintf("0/%d nodes are available: rejected by podgroup %s: %s.",
					s.tree.Len(), g.name, rejection),
				LastTransitionTime: s.cluster.now,
			}}
		}
		s.cluster.api.Put("pods", pod)
	}
	return took, rejection
}

// pod returns a member that waits, as a user writes it.
func (g *gang) pod(rank int, now metav1.Time) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("%s-worker-%d", g.name, rank), CreationTimestamp: now,
		Labels: map[string]string{
			wellknown.GangName: g.name, wellknown.GangMinAvailable: strconv.Itoa(g.pods),
		},
		Annotations: map[string]string{wellknown.GangRequiredLevel: g.requiredLevel},
	}}
	list := corev1.ResourceList{gpu: *resource.NewQuantity(int64(g.gpus), resource.DecimalSI)}
	// A real API server takes limits for requests that are left out.
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Resources: corev1.ResourceRequirements{Limits: list, Requests: list},
	}}
	p.Status.Phase = corev1.PodPending
	return p
}
