//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
)

// TestSGPUChaos: pods with shares come and go while plugin and kubelet, each
// and both, are killed at random. Then no card is over-committed, every running
// container has what it had or was reported to have, and nothing is left of those
// that are gone. TestSoak has such a round among its faults, with all that is looked
// at here; this one is ten longer ones.
func TestSGPUChaos(t *testing.T) {
	if os.Getenv("HEDDLE_LONG_TESTS") == "" {
		t.Skip("takes over five minutes; set HEDDLE_LONG_TESTS to run it")
	}
	const rounds = 10
	each := 30 * time.Second
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := sgpu(t)

	mark := r.plugin.log.mark()

	// These stay all the time and must not notice.
	anchors := r.anchors()
	r.create(t, anchors...)
	for _, p := range anchors {
		r.waitReady(t, p.Name, waitStart)
	}
	before := r.truthful(t)
	records := r.shareRecords(t, names(anchors)...)

	c := &chaos{rig: r, every: killEvery, churners: 6, patience: 20 * time.Second}
	for round := 0; round < rounds || c.ran.Load() == 0 && round < 2*rounds; round++ {
		if round >= rounds {
			// On a machine with much else to do no pod gets as far as to run between two kills,
			// nor while five others start.
			c.every, each = 3*c.every, 2*each
			c.churners, c.patience = max(1, c.churners/3), waitStart
		}
		begin := time.Now()
		c.run(t, seed+uint64(round), each)
		killed := time.Now()
		r.waitAllDecided(t)
		quiet := time.Now()
		r.count(t)
		after := r.truthful(t)
		t.Logf("chaos for %.1f s, quiet %.1f s after the last kill, looked at for %.1f s",
			killed.Sub(begin).Seconds(), quiet.Sub(killed).Seconds(), time.Since(quiet).Seconds())
		for k, was := range before {
			if diff := cmp.Diff(was, after[k]); diff != "" {
				t.Errorf("%s noticed (-before +after):\n%s", k, diff)
			}
		}
	}
	t.Logf("%d kills of the plugin, %d of the kubelet; %d pods, of which %d ran and %d failed at admission",
		c.plugins.Load(), c.kubelets.Load(), c.pods.Load(), c.ran.Load(), c.failed.Load())
	if c.ran.Load() == 0 {
		t.Error("no pod has run")
	}
	if diff := cmp.Diff(records, r.shareRecords(t, names(anchors)...)); diff != "" {
		t.Errorf("records of pods that ran all the time (-before +after):\n%s", diff)
	}
	for line := range strings.Lines(r.plugin.log.since(mark)) {
		if strings.Contains(line, "shares differ from the checkpoint") {
			t.Errorf("drift: %s", line)
		}
	}
	r.gone(t)
}

// anchors are pods with shares of every kind.
func (r *rig) anchors() []*corev1.Pod {
	return []*corev1.Pod{
		tolerating(r.pod("anchor-0", box{more: share(70, 40)})), tolerating(r.pod("anchor-1", box{hcas: 1, more: share(25, 10)})),
		tolerating(r.pod("anchor-2", box{more: shares(2, 30, 8)})),
		tolerating(besides(r.pod("anchor-3", box{more: share(20, 4)}), box{name: "side", more: share(40, 4)})),
	}
}

// shareRecords are who has which cards by the records on disk, for these pods.
func (r *rig) shareRecords(t *testing.T, pods ...string) map[string][]allocation.Share {
	t.Helper()
	all := map[string][]allocation.Share{}
	for k, list := range r.bindings(t) {
		for _, name := range pods {
			for i := range list {
				if strings.HasPrefix(k, name+"/") && list[i].Resource == slotResource {
					all[k+" "+list[i].Device] = byGPU(list[i].Shares)
				}
			}
		}
	}
	return all
}

// gone removes all pods and waits until nothing is left of them. One more pod
// makes the kubelet write its checkpoint without them.
func (r *rig) gone(t *testing.T) {
	t.Helper()
	list, err := r.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []*corev1.Pod
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	r.remove(t, names(all)...)
	r.run(t, tolerating(r.pod("last", box{hcas: 1})))
	t.Logf("nothing was left of %d pods after %.1f s", len(all), r.nothingLeft(t, waitQuiet).Seconds())
}

// waitAllDecided waits until every pod runs, has ended, waits for a GPU that no pod
// can give it, or is gone. None that runs to its end is among them; but a
// kubelet that restarts admits its pods again, and ends one that has an ordinary
// init container with devices if it is faster than the plugin.
func (r *rig) waitAllDecided(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		list, err := r.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for i := range list.Items {
			p := &list.Items[i]
			if p.DeletionTimestamp != nil {
				return p.Name + " is not gone"
			}
			if !decided(p) {
				return fmt.Sprintf("%s is not decided: %s", p.Name, inShort(p))
			}
		}
		return ""
	})
}

// decided: see waitAllDecided.
func decided(p *corev1.Pod) bool {
	return ready(p) || p.Status.Phase == corev1.PodFailed || p.Spec.NodeName == "" ||
		p.Status.Phase == corev1.PodSucceeded && len(p.Spec.InitContainers) > 0 || strings.Contains(waitingFor(p), "gets no GPU")
}

// truthful has every container that runs look again, compares with its pod's
// annotation, and returns which start of the container that was and what it
// can open, by container.
func (r *rig) truthful(t *testing.T) map[string]string {
	t.Helper()
	// A pod's annotation is written when its containers run already.
	var consumers map[string]*corev1.Pod
	eventually(t, 30*time.Second, func() string {
		consumers = r.consumers(t)
		for name, p := range consumers {
			if _, err := boundTo(p); err != nil {
				return fmt.Sprintf("%s: %v", name, err)
			}
		}
		return ""
	})
	m := r.machine(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	found := map[string]string{}
	for name, p := range consumers {
		bound, err := boundTo(p)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, c := range p.Spec.Containers {
			all.Go(func() {
				s, err := r.tryAsk(t.Context(), name, c.Name, m)
				// A kubelet that has just started does not know its pods yet.
				for range 60 {
					if err == nil || !strings.Contains(err.Error(), "pod does not exist") {
						break
					}
					pause(t, 500*time.Millisecond)
					s, err = r.tryAsk(t.Context(), name, c.Name, m)
				}
				if err != nil {
					t.Errorf("%s/%s: %v", name, c.Name, err)
					return
				}
				var uuids []string
				for _, one := range byGPU(bound.Containers[c.Name].Shares) {
					uuids = append(uuids, one.UUID)
				}
				if diff := cmp.Diff(uuids, s.GPUs); diff != "" {
					t.Errorf("%s/%s: cards (-annotation +can open):\n%s", name, c.Name, diff)
				}
				now := status(p, c.Name)
				mu.Lock()
				defer mu.Unlock()
				found[key(name, c.Name)] = fmt.Sprintf("%s, restarts %d, GPUs %v, HCAs %v", now.ContainerID, now.RestartCount, s.GPUs, s.HCAs)
			})
		}
	}
	all.Wait()
	if len(found) == 0 {
		t.Error("no pod runs")
	}
	return found
}

// tryAsk has a running container look again.
func (r *rig) tryAsk(ctx context.Context, pod, container string, m *machine.Machine) (*seen, error) {
	out, err := r.Kubectl(ctx, "exec", pod, "-c", container, "--", "/report", "once")
	if err != nil {
		return nil, err
	}
	got, err := parseReport([]byte(out))
	if err != nil {
		return nil, err
	}
	return interpret(got, m)
}
