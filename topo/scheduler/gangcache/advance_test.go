package gangcache

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// waiting is a cache with a gang of two that has been rejected for long enough, and has
// room reserved on node n.
func waiting(t *testing.T) (c *Cache, a, b *corev1.Pod) {
	t.Helper()
	c = newCache()
	c.ReserveAfter = time.Minute
	a, b = podOf("a", in("x", "2")), podOf("b", in("x", "2"))
	admit(c, a)
	admit(c, b)
	try := func() (due bool) {
		_, _, _ = c.Place(a, func(gangs []planner.Gang, _ bool) ([]planner.Plan, []*corev1.Pod, string) {
			if due = gangs[0].Due; due {
				c.Reserve(gangs, planner.Advance{Start: time.Now().Add(time.Hour), Reservations: fit.Reservations{
					"n": {{UID: "a", Start: time.Now().Add(time.Hour)}, {UID: "b", Start: time.Now().Add(time.Hour)}},
				}})
			}
			return nil, nil, "no room"
		})
		return due
	}
	if try() {
		t.Error("room is reserved at once")
	}
	<-time.After(time.Minute)
	c.Effects()
	c.Expire(nil)
	if !activated(c)["default/a"] || !try() || len(c.Reservations()["n"]) != 2 {
		t.Errorf("after a minute %v is reserved", c.Reservations())
	}
	if try() {
		t.Error("room is reserved again")
	}
	return c, a, b
}

// What is reserved in advance is given back when the gang has a plan, is not complete any
// more, or is gone; and is made again when its start has passed.
func TestReservationInAdvanceEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, c *Cache, a, b *corev1.Pod)
		left int
	}{
		{"a plan", func(t *testing.T, c *Cache, a, _ *corev1.Pod) {
			t.Helper()
			commit(t, c, a, map[string]string{"a": "m", "b": "m"})
		}, 0},
		{"a member less", func(_ *testing.T, c *Cache, _, b *corev1.Pod) { c.DeletePod(b) }, 0},
		{"no member", func(_ *testing.T, c *Cache, a, b *corev1.Pod) { c.DeletePod(a); c.DeletePod(b) }, 0},
		{"its start has passed", func(t *testing.T, c *Cache, _, _ *corev1.Pod) {
			t.Helper()
			<-time.After(2 * time.Hour)
			c.Effects()
			c.Expire(nil)
			if !activated(c)["default/a"] {
				t.Error("the gang is not tried again")
			}
		}, 2},
		{"no room any more", func(_ *testing.T, c *Cache, a, _ *corev1.Pod) {
			<-time.After(2 * time.Hour)
			_, _, _ = c.Place(a, func(gangs []planner.Gang, _ bool) ([]planner.Plan, []*corev1.Pod, string) {
				c.Reserve(gangs, planner.Advance{})
				return nil, nil, "no room"
			})
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, a, b := waiting(t)
				c.Effects()
				tt.do(t, c, a, b)
				if got := len(c.Reservations()["n"]); got != tt.left {
					t.Errorf("%d pods have room reserved, want %d", got, tt.left)
				}
				if retries := c.Effects().Activate; tt.left == 0 && tt.name == "a plan" && len(retries) == 0 {
					t.Error("no gang is tried for the room")
				}
			})
		})
	}
}

// The reservation of a gang does not count against itself.
func TestOwnReservationInAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := waiting(t)
		if got := c.Reservations(planner.Gang{Key: c.members["a"].gang.key}); len(got) != 0 {
			t.Errorf("beside its own: %v", got)
		}
		if got := c.Reservations(); len(got["n"]) != 2 {
			t.Errorf("for others: %v", got)
		}
	})
}

// The age of a gang is that of its first pod, or of its PodGroup, for all of its pods.
func TestQueueKey(t *testing.T) {
	c := newCache()
	now := time.Now().Truncate(time.Second)
	of := func(name string, labels map[string]string, age time.Duration) *corev1.Pod {
		pod := podOf(name, labels)
		pod.CreationTimestamp = metav1.NewTime(now.Add(-age))
		admit(c, pod)
		return pod
	}
	old, young := of("old", in("x", "2"), time.Hour), of("young", in("x", "2"), 0)
	plain := of("plain", nil, time.Minute)
	first, second, third := c.QueueKey(young), c.QueueKey(old), c.QueueKey(plain)
	if first != second || first.Compare(&third) > 0 {
		t.Errorf("the young member's turn is %v, the old one's %v, that of a pod between %v", first, second, third)
	}
}
