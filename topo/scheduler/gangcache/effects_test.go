package gangcache

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// A node that rejects a member is avoided, longer each time, until it changes.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		a := podOf("a", in("x", "1"))
		admit(c, a)
		avoidedBy := func(gang string) int {
			nodes, _ := c.Backoffs.Avoided(types.NamespacedName{Namespace: "default", Name: gang})
			return len(nodes)
		}
		avoided := func() int { return avoidedBy("x") }
		for _, lasts := range []time.Duration{backoffFirst, 2 * backoffFirst} {
			commit(t, c, a, map[string]string{"a": "n"})
			if c.TurnedAway(a, "n", "volume"); !activated(c)["default/a"] {
				t.Error("the gang does not plan again")
			}
			<-time.After(lasts)
			if avoided() != 1 {
				t.Errorf("tried again within %s", lasts)
			}
			<-time.After(time.Millisecond)
			if avoided() != 0 {
				t.Errorf("avoided for more than %s", lasts)
			}
		}
		commit(t, c, a, map[string]string{"a": "n"})
		c.TurnedAway(a, "n", "volume")
		if c.NodeChanged("n", &corev1.Node{}); avoided() != 0 {
			t.Error("a node that changed is avoided")
		}
		group := types.NamespacedName{Namespace: "default", Name: "native"}
		c.Backoffs.Add(group, "volume", "n")
		if got := avoidedBy("native"); got != 1 {
			t.Errorf("a native PodGroup avoids %d nodes", got)
		}
		if c.NodeChanged("n", &corev1.Node{}); avoidedBy("native") != 0 {
			t.Error("a native PodGroup avoids a node that changed")
		}
	})
}

// The leader shows what its gang lacks now; the others follow when that is of another kind, at most
// once a minute.
func TestReasonsOfTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		pods := []*corev1.Pod{podOf("a", in("x", "2")), podOf("b", in("x", "2"))}
		for _, pod := range pods {
			admit(c, pod)
		}
		for _, tt := range []struct {
			reason string
			others bool
		}{
			{"1 of 3 fit, group leaf-1 is 8 GPUs short", false},
			{"2 of 3 fit, group leaf-7 is 4 GPUs short", false},
			{"waits for a topology tree", true},
			{"1 of 3 fit", false},
		} {
			activated(c)
			_, got := cycle(c, pods[0], func([]planner.Gang) planner.Plan { return planner.Plan{Reason: tt.reason} })
			if got != "rejected by podgroup x: "+tt.reason {
				t.Errorf("the leader shows %q, want %s", got, tt.reason)
			}
			if got := activated(c)["default/b"]; got != tt.others {
				t.Errorf("%s: the other member is tried: %t, want %t", tt.reason, got, tt.others)
			}
			if _, shown := place(c, pods[1], nil); shown != got {
				t.Errorf("the other member shows %q, want %q", shown, got)
			}
		}
	})
}

func events(c *Cache) (out []string) {
	for _, e := range c.Events() {
		out = append(out, e.Pod.Name+" "+e.Reason+" "+e.Message)
	}
	return out
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		a := podOf("a", nil)
		a.Annotations = map[string]string{
			wellknown.KoordinatorName: "x", wellknown.KoordinatorMinAvailable: "2", wellknown.KoordinatorTotalNumber: "9",
		}
		admit(c, a)
		want := []string{"a GangInvalidAnnotation annotation gang.scheduling.koordinator.sh/total-number is ignored"}
		if diff := cmp.Diff(want, events(c)); diff != "" {
			t.Errorf("at first (-want +got):\n%s", diff)
		}
		<-time.After(time.Minute)
		want = []string{"a GangIncomplete podgroup x waits for pods: 1 of 2 exist"}
		if diff := cmp.Diff(want, events(c)); diff != "" {
			t.Errorf("later (-want +got):\n%s", diff)
		}
		if got := events(c); len(got) > 0 {
			t.Errorf("again: %v", got)
		}
	})
}

// Ignored annotations of a gang that got its nodes at once are reported too, and not
// again by every scheduler that starts.
func TestEventsOfAGangThatNeverWaited(t *testing.T) {
	for _, tt := range []struct {
		name string
		age  time.Duration
		want []string
	}{
		{"young", time.Second, []string{"a GangInvalidAnnotation annotation gang.scheduling.koordinator.sh/mode is ignored; " +
			"annotation gang.scheduling.koordinator.sh/total-number is ignored"}},
		{"old", time.Hour, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache()
				a := podOf("a", nil)
				a.Spec.NodeName, a.CreationTimestamp = "n", metav1.NewTime(time.Now().Add(-tt.age))
				a.Annotations = map[string]string{
					wellknown.KoordinatorName: "x", wellknown.KoordinatorMinAvailable: "1", wellknown.KoordinatorMode: "NonStrict",
					wellknown.KoordinatorTotalNumber: "2",
				}
				c.UpdatePod(a)
				if diff := cmp.Diff(tt.want, append(events(c), events(c)...)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestGroupsWithAGangThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		a := podOf("a", in("x", "1"))
		a.Annotations = map[string]string{wellknown.GangGroups: `["default/x", "default/never"]`}
		const reason = "podgroup x waits for podgroup default/never of its groups does not exist"
		if got := admit(c, a); got != reason {
			t.Errorf("%s", got)
		}
		if got := events(c); len(got) > 0 {
			t.Errorf("at once: %v", got)
		}
		<-time.After(incompleteAfter)
		if diff := cmp.Diff([]string{"a GangIncomplete " + reason}, append(events(c), events(c)...)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		never := podOf("b", in("never", "1"))
		never.Annotations = a.Annotations
		admit(c, never)
		if got := admit(c, a); got != "" {
			t.Errorf("with the other: %s", got)
		}
	})
}
