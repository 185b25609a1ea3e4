package gangcache

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
)

// startGang gives pods nodes by one plan, and lets all go on.
func startGang(t *testing.T, c *Cache, nodes map[string]string, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		admit(c, pod)
	}
	for _, pod := range pods {
		commit(t, c, pod, nodes)
		if _, rejection := c.Permit(pod, nodes[pod.Name]); rejection != "" {
			t.Fatal(rejection)
		}
	}
}

// change is another version of a pod.
func change(c *Cache, pod *corev1.Pod, how func(*corev1.Pod)) {
	now := pod.DeepCopy()
	how(now)
	c.UpdatePod(now)
}

// A member that could not be bound keeps its room past the deadline, since the others run.
func TestFailedBindKeepsItsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		a, b := podOf("a", in("x", "2")), podOf("b", in("x", "2"))
		startGang(t, c, map[string]string{"a": "n", "b": "m"}, a, b)
		c.Unreserve(b, "m")
		change(c, a, func(p *corev1.Pod) { p.Spec.NodeName = "n" })
		for range 3 {
			if list := c.Reservations()["m"]; len(list) != 1 || list[0].UID != b.UID {
				t.Fatalf("%v is reserved", c.Reservations())
			}
			<-time.After(2 * time.Minute)
			c.Effects() // Those of before.
			if c.Expire(nil); !activated(c)["default/b"] {
				t.Error("b is not tried again")
			}
		}
		if node, rejection := place(c, b, nil); node != "m" {
			t.Errorf("b is on %q: %s", node, rejection)
		}
		if wait, rejection := c.Permit(b, "m"); wait > 0 || rejection != "" {
			t.Errorf("b waits for %s: %s", wait, rejection)
		}
		c.Unreserve(b, "m")
		if c.DeletePod(b); len(c.Reservations()) > 0 {
			t.Errorf("%v is reserved for a pod that is gone", c.Reservations())
		}
	})
}

// A member that could not be bound is tried until it is, whatever else keeps its gang
// from running in part: the policy that counts only pods that wait, a gang of its groups
// that runs, members beyond the minimum.
func TestFailedBindIsTriedUntilItIsBound(t *testing.T) {
	onlyWaiting := func(p *corev1.Pod) *corev1.Pod {
		p.Labels[wellknown.GangMatchPolicy] = string(gang.OnlyWaiting)
		return p
	}
	for name, pods := range map[string][2]*corev1.Pod{
		"only waiting": {onlyWaiting(podOf("a", in("x", "2"))), onlyWaiting(podOf("b", in("x", "2")))},
		"groups":       {listing(podOf("a", in("x", "1")), `["y"]`), listing(podOf("b", in("y", "1")), `["x"]`)},
		"one more":     {podOf("a", in("x", "1")), podOf("b", in("x", "1"))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache()
				a, b := pods[0], pods[1]
				startGang(t, c, map[string]string{"a": "n", "b": "m"}, a, b)
				c.Unreserve(b, "m")
				change(c, a, func(p *corev1.Pod) { p.Spec.NodeName = "n" })
				<-time.After(2 * time.Minute)
				c.Expire(nil)
				if got := admit(c, b); got != "" {
					t.Errorf("b may not enter the queue: %s", got)
				}
				if node, rejection := place(c, b, nil); node != "m" {
					t.Errorf("b is on %q: %s", node, rejection)
				}
				if wait, rejection := c.Permit(b, "m"); wait > 0 || rejection != "" {
					t.Errorf("b waits for %s: %s", wait, rejection)
				}
			})
		})
	}
}

// A scheduler that starts after the first pods of a gang have succeeded lets the rest run.
func TestSucceededPodsCountAfterARestart(t *testing.T) {
	c := newCache()
	for _, name := range []string{"a", "b"} {
		pod := podOf(name, in("x", "2"))
		pod.Spec.NodeName, pod.Status.Phase = "n", corev1.PodSucceeded
		c.UpdatePod(pod)
	}
	if got := admit(c, podOf("c", in("x", "2"))); got != "" {
		t.Errorf("the rest: %s", got)
	}
}
