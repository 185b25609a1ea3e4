//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
)

// tolerating has a pod bear the taints of GPU nodes.
func tolerating(p *corev1.Pod) *corev1.Pod {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return p
}

// churn makes one pod after the other, with random shares and life, and takes each away whatever
// it is up to.
func (s *soak) churn(ctx context.Context, random *rand.Rand, n int) {
	api := s.client.CoreV1().Pods(namespace)
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("churn-%d-%d-%d", random.Uint32N(1e6), n, i)
		p := s.pod(name, box{more: shares(1+random.IntN(2), 5+random.IntN(30), 1+random.IntN(12))})
		if random.IntN(4) == 0 {
			p = s.pod(name, box{more: share(5+random.IntN(30), 2)}, box{name: "before", more: share(10, 2), args: []string{"once"}})
		}
		if random.IntN(5) == 0 {
			p = s.sharer(name)
		}
		if random.IntN(2) == 0 {
			p.Spec.SchedulerName = schedulerDaemon
		}
		if _, err := api.Create(ctx, tolerating(p), metav1.CreateOptions{}); err != nil {
			if !apierrors.IsAlreadyExists(err) { // A step of a soak again, with the same names.
				s.note(ctx, err)
			}
			sleep(ctx, 200*time.Millisecond) // The API server may be away.
			continue
		}
		s.pods.Add(1)
		within := upTo(random, 3*time.Second)
		if random.IntN(3) > 0 {
			within = 20 * time.Second // Else it goes before it has run.
		}
		if s.runs(ctx, name, within) {
			sleep(ctx, upTo(random, 2500*time.Millisecond))
		}
		for ctx.Err() == nil {
			err := api.Delete(ctx, name, metav1.DeleteOptions{})
			if err == nil || apierrors.IsNotFound(err) { // The answer to an earlier try was lost.
				break
			}
			s.note(ctx, err)
			sleep(ctx, 200*time.Millisecond)
		}
	}
}

// note keeps an answer of the API server that is an error.
func (s *soak) note(ctx context.Context, err error) {
	if ctx.Err() == nil {
		s.problem.Store(&err)
	}
}

// runs waits until a pod is ready or has failed, but no longer than within.
func (s *soak) runs(ctx context.Context, pod string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		now, err := s.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err == nil && (ready(now) || now.Status.Phase == corev1.PodFailed) {
			return ready(now)
		}
		sleep(ctx, 200*time.Millisecond)
	}
	return false
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// componentPID is 0 for what does not run.
func (s *soak) componentPID(t *testing.T, component string) int {
	t.Helper()
	for _, c := range s.Status() {
		if c.Name == component {
			return c.PID
		}
	}
	t.Fatalf("the cluster has no %s", component)
	return 0
}

// killComponent is kill -9 of one of Kubernetes' own.
func (s *soak) killComponent(t *testing.T, component string) {
	t.Helper()
	pid := s.componentPID(t, component)
	if pid == 0 {
		t.Fatalf("%s does not run", component)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if s.componentPID(t, component) != 0 {
			return component + " lives"
		}
		return ""
	})
}

func (s *soak) revivePlugin(t *testing.T) {
	t.Helper()
	if s.plugin.running() {
		return
	}
	if err := s.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// shareRecords are who has which GPUs by the records on disk, of the pods that stay.
func (s *soak) shareRecords(t *testing.T) map[string][]allocation.Share {
	t.Helper()
	all := map[string][]allocation.Share{}
	for k, list := range s.bindings(t) {
		for i := range list {
			if strings.HasPrefix(k, "anchor-") && list[i].Resource == slotResource {
				all[k+" "+list[i].Device] = byGPU(list[i].Shares)
			}
		}
	}
	return all
}

// list is all pods.
func (s *soak) list(t *testing.T) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, func() string {
		list, err := s.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		pods = list.Items
		return ""
	})
	return pods
}

// gone removes all pods and waits until nothing is left of them. One more pod
// makes the kubelet write its checkpoint without them.
func (s *soak) gone(t *testing.T) {
	t.Helper()
	var names []string
	for _, p := range s.list(t) {
		names = append(names, p.Name)
	}
	s.remove(t, names...)
	s.run(t, tolerating(s.pod("last", box{hcas: 1})))
	s.nothingLeft(t)
	s.claimLeft(t)
}

// waitAllDecided waits until every pod is decided or gone.
func (s *soak) waitAllDecided(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		for _, p := range s.list(t) {
			if p.DeletionTimestamp != nil || !decided(&p) {
				return fmt.Sprintf("%s is not decided or not gone: %s", p.Name, inShort(&p))
			}
		}
		return ""
	})
}

// decided reports whether a pod runs, has failed, waits for a GPU that no pod can give it. None that runs to its
// end is among them; but a kubelet that restarts admits its pods again, and ends one that has an ordinary
// init container with devices if it is faster than the plugin.
func decided(p *corev1.Pod) bool {
	return ready(p) || p.Status.Phase == corev1.PodFailed || p.Spec.NodeName == "" ||
		p.Status.Phase == corev1.PodSucceeded && len(p.Spec.InitContainers) > 0 || strings.Contains(waitingFor(p), "gets no GPU")
}

// truthful has every container that runs look again, compares with its pod's
// annotation, and returns which start of the container that was and what it
// can open, by container.
func (s *soak) truthful(t *testing.T) map[string]string {
	t.Helper()
	// A pod's annotation is written when its containers run already.
	var consumers map[string]*corev1.Pod
	eventually(t, func() string {
		consumers = s.consumers(t)
		for name, p := range consumers {
			if _, err := boundTo(p); err != nil {
				return fmt.Sprintf("%s: %v", name, err)
			}
		}
		return ""
	})
	m := s.machine(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	found := map[string]string{}
	for name, p := range consumers {
		bound, err := boundTo(p)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, c := range p.Spec.Containers {
			all.Go(func() {
				saw, err := s.look(t.Context(), name, c.Name, m)
				if err != nil {
					t.Errorf("%s/%s: %v", name, c.Name, err)
					return
				}
				var uuids []string
				for _, one := range byGPU(bound.Containers[c.Name].Shares) {
					uuids = append(uuids, one.UUID)
				}
				if diff := cmp.Diff(uuids, saw.GPUs); diff != "" {
					t.Errorf("%s/%s: GPUs (-annotation +can open):\n%s", name, c.Name, diff)
				}
				mu.Lock()
				defer mu.Unlock()
				found[key(name, c.Name)] = start(p, c.Name, saw)
			})
		}
	}
	all.Wait()
	p, err := s.client.CoreV1().Pods(namespace).Get(t.Context(), claimAnchor, metav1.GetOptions{})
	var saw *seen
	if err == nil {
		saw, err = s.look(t.Context(), claimAnchor, "app", m)
	}
	if err != nil {
		t.Fatal(err)
	}
	found[key(claimAnchor, "app")] = start(p, "app", saw)
	if len(consumers) == 0 {
		t.Error("no pod runs")
	}
	return found
}

// start tells one start of a container, and what it can open, from another.
func start(p *corev1.Pod, container string, saw *seen) string {
	now := status(p, container)
	return fmt.Sprintf("%s, restarts %d, GPUs %v, HCAs %v", now.ContainerID, now.RestartCount, saw.GPUs, saw.HCAs)
}

// look has a running container look again. A kubelet that has just started does not know its pods yet.
func (s *soak) look(ctx context.Context, pod, container string, m *machine.Machine) (*seen, error) {
	for tries := 60; ; tries-- {
		out, err := s.Kubectl(ctx, "exec", pod, "-c", container, "--", "/report", "once")
		if err != nil {
			if tries > 0 && strings.Contains(err.Error(), "pod does not exist") {
				sleep(ctx, 500*time.Millisecond)
				continue
			}
			return nil, err
		}
		got, err := parseReport([]byte(out))
		if err != nil {
			return nil, err
		}
		return interpret(got, m)
	}
}

// sweep removes what churn of the steps before left. What fails is left to the next.
func (s *soak) sweep(t *testing.T) {
	t.Helper()
	left := slices.DeleteFunc(s.list(t), func(p corev1.Pod) bool { return !strings.HasPrefix(p.Name, "churn-") })
	for i := range left {
		_ = s.client.CoreV1().Pods(namespace).Delete(t.Context(), left[i].Name, metav1.DeleteOptions{})
	}
}
