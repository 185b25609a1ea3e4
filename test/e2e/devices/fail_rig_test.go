//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ctx is for clean-ups too, when the test's context has ended.
func (*rig) ctx(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}

// workload is one container with many devices and one with few; the rest of
// the machine is free.
func (r *rig) workload(t *testing.T) []string {
	t.Helper()
	r.create(t, r.pod("big", box{gpus: 4, hcas: 4}), r.pod("small", box{gpus: 1, hcas: 1}))
	r.waitReady(t, "big")
	r.waitReady(t, "small")
	return []string{"big", "small"}
}

// lands proves that the node takes new pods: one gets two GPUs and two HCAs.
func (r *rig) lands(t *testing.T, name string) {
	t.Helper()
	r.run(t, r.pod(name, box{gpus: 2, hcas: 2}))
	r.has(t, name, "app", 2, 2)
}

// life is what must not change while another component fails.
type life struct {
	ID         string
	Restarts   int32
	GPUs, HCAs []string
}

// lives are those of the containers named app, as they are now.
func (r *rig) lives(t *testing.T, pods ...string) map[string]life {
	t.Helper()
	all := map[string]life{}
	for _, name := range pods {
		p := r.getPod(t, name)
		if p == nil {
			t.Errorf("there is no pod %s", name)
			continue
		}
		s, err := interpret(r.ask(t, name, "app"), r.machine(t))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c := status(p, "app")
		all[name] = life{c.ContainerID, c.RestartCount, s.GPUs, s.HCAs}
	}
	return all
}

// untouched fails the test if a container is not what it was.
func (r *rig) untouched(t *testing.T, before map[string]life) {
	t.Helper()
	if diff := cmp.Diff(before, r.lives(t, sortedKeys(before)...)); diff != "" {
		t.Errorf("running containers changed (-before +after):\n%s", diff)
	}
}

// sameDevices fails the test if a container started again has others.
func (r *rig) sameDevices(t *testing.T, before map[string]life) {
	t.Helper()
	after := r.lives(t, sortedKeys(before)...)
	for name, b := range before {
		a := after[name]
		if diff := cmp.Diff([2][]string{b.GPUs, b.HCAs}, [2][]string{a.GPUs, a.HCAs}); diff != "" {
			t.Errorf("%s came back with other devices (-before +after):\n%s", name, diff)
		}
	}
}

// crash kills the container of a pod and returns how often it had started
// again.
func (r *rig) crash(t *testing.T, pod string) (restarts int32) {
	t.Helper()
	s := status(r.getPod(t, pod), "app")
	r.killContainer(t, s.ContainerID)
	return s.RestartCount
}

// stopKubelet stops the kubelet until startKubelet, or until the test ends.
func (r *rig) stopKubelet(t *testing.T) {
	t.Helper()
	if err := r.StopKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.StartKubelet(r.ctx(t)) }) // It mostly runs by then.
}

func (r *rig) startKubelet(t *testing.T) {
	t.Helper()
	if err := r.StartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// registrations counts those in a part of the plugin's log.
func registrations(log string) int { return strings.Count(log, `msg="registered with kubelet"`) }

// waitRegistrations waits until the kubelet has taken both resources of a DGX H100 since mark.
func (r *rig) waitRegistrations(t *testing.T, mark int) {
	t.Helper()
	eventually(t, func() string {
		if got := registrations(r.plugin.log.since(mark)); got < 2 {
			return fmt.Sprintf("%d registrations of 2", got)
		}
		return ""
	})
}

// pause is for scenarios that are about time.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// waitWaiting waits until the kubelet reports a text of a container that does not
// start, as its state or in an Event.
func (r *rig) waitWaiting(t *testing.T, pod, text string) {
	t.Helper()
	message := ""
	r.waitPod(t, pod, func(p *corev1.Pod) string {
		shown := append(slices.Concat(r.events(t, pod, "Failed"), r.events(t, pod, "FailedCreatePodSandBox")), waitingFor(p))
		for _, m := range shown {
			if strings.Contains(m, text) {
				message = m
				return ""
			}
		}
		return fmt.Sprintf("no state or Event has %q, only %q", text, shown)
	})
	t.Logf("%s waits: %s", pod, message)
}

// consistent checks what must hold whatever failed: no GPU is open to two pods, and every running container can open
// exactly the GPUs that PodResources reports for it, and as many HCAs.
func (r *rig) consistent(t *testing.T) {
	t.Helper()
	pods, err := r.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	held, m, owner := r.held(t), r.machine(t), map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil || !ready(p) {
			continue
		}
		s, err := interpret(r.ask(t, p.Name, "app"), m)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		for _, uuid := range s.GPUs {
			if other, taken := owner[uuid]; taken {
				t.Errorf("%s and %s both have %s", other, p.Name, uuid)
			}
			owner[uuid] = p.Name
		}
		mine := held[key(p.Name, "app")]
		if diff := cmp.Diff(mine[gpuResource], s.GPUs); diff != "" || len(mine[hcaResource]) != len(s.HCAs) {
			t.Errorf("%s: %d HCAs held, %d can be opened; GPUs (-PodResources +can open):\n%s",
				p.Name, len(mine[hcaResource]), len(s.HCAs), diff)
		}
	}
}

// onNode runs a shell line on the node.
func (r *rig) onNode(t *testing.T, line string) string {
	t.Helper()
	out, err := r.NodeExec(r.ctx(t), "sh", "-ec", line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return out
}
