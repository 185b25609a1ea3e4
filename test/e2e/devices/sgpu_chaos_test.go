//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
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
	t.Logf("nothing was left of %d pods after %.1f s", len(all), r.nothingLeft(t).Seconds())
}

// waitAllDecided waits until every pod runs, has ended, waits for a GPU that no pod
// can give it, or is gone. None that runs to its end is among them; but a
// kubelet that restarts admits its pods again, and ends one that has an ordinary
// init container with devices if it is faster than the plugin.
func (r *rig) waitAllDecided(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
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
	eventually(t, func() string {
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
