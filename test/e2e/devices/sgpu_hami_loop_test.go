//go:build e2e && linux

package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/test/hamirecord"
)

// hamiLoops: HAMi gives each pod that a ReplicaSet makes the GPU that it gave the last one, which
// the node rejects. How many pods come of that is bounded: for a request that heddle and HAMi
// read otherwise one; for a GPU that is full each waits twice as long as the one before; and
// without a plugin, where the kubelet fails the pod, HAMi's lock keeps the next from the node.
func hamiLoops(t *testing.T, r *rig, locks *lockLog) {
	r.configure(t, strings.Replace(hamiConfig, "rejectedFor: 0s", fmt.Sprintf("rejectedFor: %s", patience), 1))
	defer r.configure(t, hamiConfig)
	h := r.replay(t, hamirecord.V210)
	sample := h.Pod(t, "sample-pod") // 60 % of one GPU.
	h.schedule(t, "loop-holder", sample, locks)
	r.waitReady(t, "loop-holder", waitStart)

	senseless := h.controlled(t, "loop-senseless", h.Pod(t, "nvuse"))
	full := h.controlled(t, "loop-full", sample)
	for begin := time.Now(); len(full.lives()) < 3; pause(t, 200*time.Millisecond) {
		senseless.place(t)
		full.place(t)
		if time.Since(begin) > 3*time.Minute {
			t.Fatalf("pods of the ReplicaSet were there for %v, want three", full.lives())
		}
	}
	for i, lived := range full.lives() {
		if want := patience << i; lived < want {
			t.Errorf("pod %d was there for %s, want %s and more", i+1, lived, want)
		}
	}
	if n := len(senseless.made); n != 1 {
		t.Errorf("%d pods were made for a request that no node serves", n)
	}
	t.Logf("pods of one ReplicaSet were there for %v", full.lives())
	senseless.stop(t)
	full.stop(t)
	r.remove(t, "loop-holder")

	r.plugin.kill(t) // HAMi still reads the GPUs as healthy.
	orphans := h.controlled(t, "loop-orphans", sample)
	eventually(t, waitStart, func() string {
		if orphans.place(t); orphans.locked == 0 {
			return "HAMi did not meet its lock"
		}
		return ""
	})
	for begin := time.Now(); time.Since(begin) < 10*time.Second; pause(t, 200*time.Millisecond) {
		orphans.place(t)
	}
	failed := 0
	for _, p := range orphans.made {
		if p.failed {
			failed++
		}
	}
	if n := len(orphans.made); failed != 1 || n != 2 {
		t.Errorf("without a plugin %d pods were made and %d failed, want 2 and 1", n, failed)
	}
	r.plugin.again(t)
	eventually(t, waitStart, func() string {
		orphans.place(t)
		if !slices.ContainsFunc(orphans.pods(t), func(p corev1.Pod) bool { return ready(&p) }) {
			return "no pod of the ReplicaSet runs after the plugin is back"
		}
		return ""
	})
	orphans.stop(t)
}

// hamiControlled is a ReplicaSet of one recorded pod, and what HAMi does for its pods.
type hamiControlled struct {
	controlled
	h      *replay
	record *hamirecord.Pod
	made   map[types.UID]*hamiMade
	// locked is how often the node's lock was held.
	locked int
}

// hamiMade is a pod that the controller made.
type hamiMade struct {
	bound, failed bool
	seen, gone    time.Time
}

func (h *replay) controlled(t *testing.T, name string, p *hamirecord.Pod) *hamiControlled {
	t.Helper()
	return &hamiControlled{
		controlled: h.rig.replicas(t, name, h.pod("", p)), h: h, record: p, made: map[types.UID]*hamiMade{},
	}
}

// place binds the pods that wait for HAMi, if the node's lock lets it, and notes those that
// have come, failed or gone.
func (c *hamiControlled) place(t *testing.T) {
	t.Helper()
	list, err := c.rig.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + c.name})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		p := &list.Items[i]
		made := c.made[p.UID]
		if made == nil {
			made = &hamiMade{seen: time.Now()}
			c.made[p.UID] = made
		}
		made.failed = p.Status.Phase == corev1.PodFailed
		if made.gone.IsZero() && (p.DeletionTimestamp != nil || made.failed) {
			made.gone = time.Now()
		}
		if p.Spec.NodeName == "" && !made.bound && made.gone.IsZero() {
			made.bound = c.bind(t, p.Name)
		}
	}
}

func (c *hamiControlled) bind(t *testing.T, pod string) bool {
	t.Helper()
	if err := c.h.decide(t.Context(), pod, c.record, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.h.lock(t.Context(), pod, c.record); err != nil {
		if !strings.Contains(err.Error(), "node is locked") {
			t.Fatal(err)
		}
		c.locked++
		return false
	}
	if err := c.h.bind(t.Context(), pod, c.record); err != nil {
		t.Fatal(err)
	}
	return true
}

// lives are how long the pods that are gone were there, in the order in which they came.
func (c *hamiControlled) lives() (all []time.Duration) {
	var gone []*hamiMade
	for _, p := range c.made {
		if !p.gone.IsZero() {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, func(a, b *hamiMade) int { return a.seen.Compare(b.seen) })
	for _, p := range gone {
		all = append(all, p.gone.Sub(p.seen).Round(time.Millisecond))
	}
	return all
}
