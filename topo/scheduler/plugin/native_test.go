package plugin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"
)

// oneGroup is a scheduler with one PodGroup. Members get their nodes in turn.
type oneGroup struct {
	framework.Handle
	groups  groups
	waiting map[types.UID]*waitingPod
}

func (h *oneGroup) PodGroupManager() framework.PodGroupManager { return &h.groups }

func (h *oneGroup) GetWaitingPod(uid types.UID) framework.WaitingPod {
	if w := h.waiting[uid]; w != nil {
		return w
	}
	return nil
}

type groups struct {
	framework.PodGroupManager
	framework.PodGroupState
	group   schedulingapi.PodGroup
	assumed sets.Set[types.UID]
}

func (g *groups) PodGroups() framework.PodGroupLister           { return groupLister{g} }
func (g *groups) PodGroupStates() framework.PodGroupStateLister { return stateLister{g} }
func (g *groups) ScheduledPodsCount() int                       { return len(g.assumed) }
func (g *groups) AssumedPods() sets.Set[types.UID]              { return g.assumed }

type groupLister struct{ *groups }

func (l groupLister) Get(string, string) (*schedulingapi.PodGroup, error) { return &l.group, nil }

type stateLister struct{ *groups }

func (l stateLister) Get(string, string) (framework.PodGroupState, error) { return l.groups, nil }

type waitingPod struct {
	framework.WaitingPod
	allowed bool
}

func (w *waitingPod) Allow(plugin string) { w.allowed = plugin == Name }

func TestMembersOfAPodGroupWaitForEachOther(t *testing.T) {
	for _, tt := range []struct {
		name     string
		minCount int32 // 0 means no gang.
		waits    []bool
	}{
		{"all", 3, []bool{true, true, false}},
		{"members beyond the minimum", 2, []bool{true, false, false}},
		{"no gang", 0, []bool{false, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &oneGroup{waiting: map[types.UID]*waitingPod{}, groups: groups{assumed: sets.New[types.UID]()}}
			if tt.minCount > 0 {
				h.groups.group.Spec.SchedulingPolicy.Gang = &schedulingapi.GangSchedulingPolicy{MinCount: tt.minCount}
			}
			p := &Plugin{handle: h}
			for i, waits := range tt.waits {
				pod := &corev1.Pod{}
				pod.UID = types.UID(rune('a' + i))
				pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("g")}
				h.groups.assumed.Insert(pod.UID)
				status, limit := p.permitPodGroup(pod)
				if status.IsWait() != waits || waits != (limit > 0) || !waits && !status.IsSuccess() {
					t.Fatalf("member %d: status %v for %v, want it to wait: %t", i, status, limit, waits)
				}
				if waits {
					h.waiting[pod.UID] = &waitingPod{}
				}
			}
			for uid, w := range h.waiting {
				if !w.allowed {
					t.Errorf("member %s waits on", uid)
				}
			}
		})
	}
}
