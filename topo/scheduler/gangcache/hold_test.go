package gangcache

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// holding is a cache that reserves for gangs that have waited for 12 hours.
type holding struct {
	*Cache
	*testing.T
}

func withHolds(t *testing.T, test func(h *holding)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		c.HoldAfter = 12 * time.Hour
		test(&holding{c, t})
	})
}

// waits makes a gang of two pods of some age, which finds no room.
func (h *holding) waits(name string, age time.Duration, priority int32) (first, second *corev1.Pod) {
	h.Helper()
	var pods []*corev1.Pod
	for i := range 2 {
		p := podOf(fmt.Sprint(name, i), in(name, "2"))
		p.CreationTimestamp, p.Spec.Priority = metav1.NewTime(time.Now().Add(-age)), &priority
		pods = append(pods, p)
		admit(h.Cache, p)
	}
	place(h.Cache, pods[0], nil)
	return pods[0], pods[1]
}

// try is a cycle without room, in which a search finds these nodes for a hold; it reports whether it searched.
func (h *holding) try(pod *corev1.Pod, nodes ...string) (searched bool, rejection string) {
	_, rejection = cycle(h.Cache, pod, func(unit []planner.Gang) planner.Plan {
		if waiting := h.Waiting(pod); waiting != nil {
			r := planner.Reservations{}
			for _, n := range nodes {
				r[n] = []planner.Reservation{{Waiting: waiting}}
			}
			h.Hold(pod, unit, waiting, r)
			searched = true
		}
		return planner.Plan{Reason: "no room"}
	})
	return searched, rejection
}

// held are the nodes that a pod must leave free.
func (h *holding) held(pod *corev1.Pod) string {
	var nodes []string
	for _, n := range []string{"m", "n", "o"} {
		if len(h.ReservationsFor(pod, false)[n]) > 0 {
			nodes = append(nodes, n)
		}
	}
	return strings.Join(nodes, " ")
}

func (h *holding) expect(what, want string, pod *corev1.Pod) {
	h.Helper()
	if got := h.held(pod); got != want {
		h.Errorf("%s: %q is held, want %q", what, got, want)
	}
}

// plain is of no gang.
var plain = podOf("plain", nil)

func TestHoldIsForTheFirstGangThatWaits(t *testing.T) {
	withHolds(t, func(h *holding) {
		young, _ := h.waits("young", time.Hour, 0)
		if searched, _ := h.try(young, "n"); searched {
			t.Error("nodes are searched after an hour")
		}
		a, _ := h.waits("a", 13*time.Hour, 0)
		_, got := h.try(a, "n", "m")
		if want := "rejected by podgroup a: no room; 2 nodes are reserved for it"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		h.expect("others", "m n", plain)
		h.expect("its own", "", a)
		_, got = h.try(young)
		if want := "rejected by podgroup young: no room; 2 nodes are reserved for gang default/a, which has waited 12h"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		later, _ := h.waits("later", 12*time.Hour, 0)
		if searched, _ := h.try(later, "o"); searched {
			t.Error("nodes are searched for the second")
		}
		older, _ := h.waits("older", 14*time.Hour, 0)
		h.try(older, "o")
		h.expect("of an older gang", "o", a)
		h.expect("its own", "", older)
		high, _ := h.waits("high", 12*time.Hour, 1)
		if _, got = h.try(high); strings.Contains(got, "older") {
			t.Errorf("of a higher priority: %s", got)
		}
		// It can never start, so that the next one's stay.
		h.expect("of a gang that can never start", "o", plain)
		<-time.After(holdRetry)
		h.try(high, "m")
		h.expect("of a higher priority", "m", older)
	})
}

func TestHoldFollowsItsGang(t *testing.T) {
	for _, tt := range []struct {
		name string
		how  func(h *holding, a, b *corev1.Pod)
	}{
		{"a pod is gone", func(h *holding, _, b *corev1.Pod) { h.DeletePod(b) }},
		{"all are gone", func(h *holding, a, b *corev1.Pod) { h.DeletePod(a); h.DeletePod(b) }},
		{"it asks for more pods", func(h *holding, _, b *corev1.Pod) {
			change(h.Cache, b, func(p *corev1.Pod) { p.Labels = in("a", "3") })
		}},
		{"a pod terminates", func(h *holding, _, b *corev1.Pod) {
			change(h.Cache, b, func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		}},
		{"it has a plan", func(h *holding, a, _ *corev1.Pod) { place(h.Cache, a, map[string]string{"a0": "x", "a1": "x"}) }},
		{"no nodes would do any more", func(h *holding, a, _ *corev1.Pod) { h.try(a) }},
		{"it takes too long", func(h *holding, _, _ *corev1.Pod) { <-time.After(holdAtMost); h.Expire(nil) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withHolds(t, func(h *holding) {
				a, b := h.waits("a", 13*time.Hour, 0)
				h.waits("other", time.Hour, 0)
				h.try(a, "n")
				h.expect("at first", "n", plain)
				<-time.After(holdEvery)
				h.Effects()
				tt.how(h, a, b)
				for _, n := range []string{"m", "n", "o"} {
					if list := h.ReservationsFor(plain, false)[n]; len(list) > 0 && list[0].Waiting != nil {
						t.Errorf("node %s is still held", n)
					}
				}
				if !activated(h.Cache)["default/other0"] {
					t.Error("the others are not tried again")
				}
			})
		})
	}
}

// Every ten seconds the nodes are searched again. Other pods get a node that has left the result.
func TestHoldIsRenewed(t *testing.T) {
	withHolds(t, func(h *holding) {
		a, _ := h.waits("a", 11*time.Hour+59*time.Minute, 0)
		h.waits("other", time.Hour, 0)
		h.Effects() // Of the new pods.
		var nodes [][]string
		for _, tt := range []struct {
			after       time.Duration
			nodes       []string
			search, all bool
		}{
			{0, nil, false, false},
			{time.Minute, []string{"m", "n"}, true, false},
			{time.Second, nil, false, false},
			{holdEvery, []string{"m", "n"}, true, false},
			{holdEvery, []string{"n", "o"}, true, true},
		} {
			<-time.After(tt.after)
			h.Expire(nil)
			if got := activated(h.Cache)["default/a0"]; got != tt.search {
				t.Errorf("%v: it is tried again: %v", tt, got)
			}
			if searched, _ := h.try(a, tt.nodes...); searched != tt.search {
				t.Errorf("%v: nodes are searched: %v", tt, searched)
			}
			if got := activated(h.Cache)["default/other0"]; got != tt.all {
				t.Errorf("%v: others are tried again: %v", tt, got)
			}
			nodes = append(nodes, strings.Fields(h.held(plain)))
		}
		if diff := cmp.Diff([][]string{{}, {"m", "n"}, {"m", "n"}, {"m", "n"}, {"n", "o"}}, nodes); diff != "" {
			t.Errorf("held (-want +got):\n%s", diff)
		}
	})
}

// A gang that runs lacks a member, and its other GPUs are in use meanwhile: it takes what it finds. One with a plan keeps
// its nodes.
func TestHoldLetsOthersGoOn(t *testing.T) {
	withHolds(t, func(h *holding) {
		a, _ := h.waits("a", 13*time.Hour, 0)
		planned, _ := h.waits("planned", time.Hour, 0)
		place(h.Cache, planned, map[string]string{"planned0": "x", "planned1": "x"})
		h.try(a, "n")
		h.expect("for a gang with a plan", "", planned)
		runs, lost := podOf("runs0", in("runs", "2")), podOf("runs1", in("runs", "2"))
		runs.Spec.NodeName = "x"
		h.UpdatePod(runs)
		admit(h.Cache, lost)
		h.expect("for a lost member", "", lost)
	})
}
