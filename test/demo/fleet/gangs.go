package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	phase "github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
	"github.com/heddle-dev/heddle/topo/placement"
)

// gang is a job: a number of pods with a number of GPUs each, in one group of a kind.
type gang struct {
	name          string
	pods          int
	gpus          int32
	requiredLevel string
}

// gangs places two, and one that no group holds, by topo/placement, as heddle-scheduler's planner does. The rest
// of that planner, and the filters and the binding of kube-scheduler, are left out: each node has its GPUs and
// nothing else.
func (s *story) gangs(ctx context.Context) error {
	latest, _ := s.cluster.latest.Get()
	var text bytes.Buffer
	var groups []v1alpha1.Group
	err := latest.Tree.Write(&text)
	if err = errors.Join(err, json.Unmarshal(text.Bytes(), &groups)); err != nil {
		return err
	}
	tree, err := placement.New(groups)
	if err != nil {
		return err
	}
	gpus := map[string]int32{}
	for i := range s.pools {
		for at := range s.pools[i].nodes {
			gpus[s.pools[i].nodes[at].name] = s.pools[i].gpus
		}
	}
	free := make([]int32, tree.Len())
	for id := range free {
		free[id] = gpus[tree.Name(int32(id))]
	}
	unit, rack := s.pools[0].group, s.pools[1].group
	rows := [][]string{{"GANG", "PODS", "GPUS OF EACH", "IN ONE", "PLANNED IN", "OUTCOME"}}
	for _, g := range []*gang{
		{"llama", unit, 8, "leaf"}, {"moe", rack, 4, "nvlink"}, {"giant", unit + 4, 8, "leaf"},
	} {
		took, rejection := s.schedule(g, tree, free)
		outcome := "placed"
		if rejection != nil {
			outcome = "rejected"
		}
		rows = append(rows, []string{
			g.name, fmt.Sprint(g.pods), fmt.Sprint(g.gpus), g.requiredLevel,
			fmt.Sprintf("%5.2f ms", took.Seconds()*1000), outcome,
		})
	}
	s.table(rows)
	s.print("\n")
	return s.cluster.until(ctx, "the gangs", func(v *snapshot.Snapshot) bool {
		states := map[phase.Phase]int{}
		for _, g := range v.GangList() {
			if g.State == phase.Queued && g.Members < g.MinMember {
				return false // Some of its pods have not been seen yet.
			}
			states[g.State]++
		}
		return states[phase.Running] == 2 && states[phase.Queued] == 1
	})
}

// schedule plans a gang and binds its pods, or gives them the reason for the rejection. took is the time of the plan.
func (s *story) schedule(g *gang, tree *placement.Tree, free []int32) (took time.Duration, rejection error) {
	fit := make([]int32, len(free))
	for id := range free {
		fit[id] = free[id] / g.gpus
	}
	start := time.Now()
	plan, rejection := placement.Place(tree, &placement.Gang{
		Tasks:   []placement.Task{{Name: "worker", Pods: g.pods, GPUs: int(g.gpus)}},
		Require: g.requiredLevel,
	}, &placement.Capacity{Fit: [][]int32{fit}, Free: free})
	took = time.Since(start)
	for rank := range g.pods {
		pod := g.pod(rank, s.cluster.now)
		if rejection == nil {
			node := plan.Nodes[rank]
			free[node] -= g.gpus
			pod.Spec.NodeName, pod.Status.Phase = tree.Name(node), corev1.PodRunning
			pod.Status.StartTime = &s.cluster.now
		} else {
			pod.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				Message: fmt.Sprintf("0/%d nodes are available: rejected by podgroup %s: %s.",
					tree.Len(), g.name, rejection),
				LastTransitionTime: s.cluster.now,
			}}
		}
		s.cluster.api.Put("pods", pod)
	}
	return took, rejection
}

// pod returns a pending member, as a user writes it.
func (g *gang) pod(rank int, now metav1.Time) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("%s-worker-%d", g.name, rank), CreationTimestamp: now,
		Labels: map[string]string{
			wellknown.GangName: g.name, wellknown.GangMinAvailable: strconv.Itoa(g.pods),
		},
		Annotations: map[string]string{wellknown.GangRequiredLevel: g.requiredLevel},
	}}
	list := corev1.ResourceList{gpu: *resource.NewQuantity(int64(g.gpus), resource.DecimalSI)}
	// A real API server sets missing requests to the limits.
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Resources: corev1.ResourceRequirements{Limits: list, Requests: list},
	}}
	p.Status.Phase = corev1.PodPending
	return p
}
