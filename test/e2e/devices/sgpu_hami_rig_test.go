//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

// hamiScheduler is HAMi's name as a scheduler.
const hamiScheduler = "hami-scheduler"

// replay writes what a version of unmodified HAMi wrote, in its order, to the real API
// server: the pod as it is after HAMi's webhook, the decision of its Filter, the node
// lock and the annotations of its Bind, the Binding. The rig is the recorded node: the
// same machine and the same name.
type replay struct {
	*hamirecord.Recording
	rig *rig
}

func (r *rig) replay(t *testing.T, version string) *replay {
	t.Helper()
	if r.Node() != hamirecord.Node {
		t.Fatalf("the node is %s, and the recorded one %s", r.Node(), hamirecord.Node)
	}
	return &replay{hamirecord.Load(t, version), r}
}

// pod is a recorded pod as it is after HAMi's webhook, with the rig's image.
func (h *replay) pod(name string, p *hamirecord.Pod) *corev1.Pod {
	boxes := func(all []hamirecord.Container, args ...string) (list []box) {
		for i := range all {
			b := box{name: all[i].Name, more: all[i].Resources(), args: args, sidecar: all[i].RestartPolicy != nil}
			if b.sidecar {
				b.args = nil
			}
			list = append(list, b)
		}
		return list
	}
	apps := boxes(p.Submitted.Containers)
	pod := besides(h.rig.pod(name, apps[0], boxes(p.Submitted.InitContainers, "once")...), apps[1:]...)
	admitted := p.Admitted()
	pod.Annotations, pod.Spec.SchedulerName = admitted.Annotations, admitted.Spec.SchedulerName
	return pod
}

// decide is what HAMi's Filter writes when it has chosen a node and its GPUs.
func (h *replay) decide(ctx context.Context, pod string, p *hamirecord.Pod, change func(map[string]string)) error {
	annotations, labels := p.Decision()
	if change != nil {
		change(annotations)
		labels[apinames.HAMiNode] = annotations[apinames.HAMiNode]
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations, "labels": labels}})
	if err != nil {
		return err
	}
	_, err = h.rig.client.CoreV1().Pods(namespace).Patch(ctx, pod, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// lock takes HAMi's lock of the node for a pod: by an update up to 2.6, by a
// patch with resourceVersion later. While it is held, it fails.
func (h *replay) lock(ctx context.Context, pod string, p *hamirecord.Pod) (value string, err error) {
	value = p.Lock(pod)
	nodes := h.rig.client.CoreV1().Nodes()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := nodes.Get(ctx, h.rig.Node(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if held, locked := n.Annotations[apinames.HAMiLock]; locked {
			return fmt.Errorf("node is locked by %q", held)
		}
		if h.Version == hamirecord.V26 {
			n.Annotations[apinames.HAMiLock] = value
			_, err = nodes.Update(ctx, n, metav1.UpdateOptions{})
			return err
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": map[string]string{apinames.HAMiLock: value}, "resourceVersion": n.ResourceVersion,
		}})
		if err != nil {
			return err
		}
		_, err = nodes.Patch(ctx, n.Name, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	})
	return value, err
}

// bind is HAMi's: the phase and the time on the pod, then the Binding.
func (h *replay) bind(ctx context.Context, pod string, p *hamirecord.Pod) error {
	if err := h.rig.annotatePod(ctx, pod, p.Binding()); err != nil {
		return err
	}
	return h.rig.client.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: h.rig.Node()},
	}, metav1.CreateOptions{})
}

// schedule is all of it, for a pod that the test removes. It returns how long
// after the binding the lock was seen to go.
func (h *replay) schedule(t *testing.T, name string, p *hamirecord.Pod, locks *lockLog) time.Duration {
	t.Helper()
	h.rig.create(t, h.pod(name, p))
	return h.place(t, name, p, locks)
}

// place schedules a pod that is there.
func (h *replay) place(t *testing.T, name string, p *hamirecord.Pod, locks *lockLog) time.Duration {
	t.Helper()
	if err := h.decide(t.Context(), name, p, nil); err != nil {
		t.Fatal(err)
	}
	value, err := h.lock(t.Context(), name, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.bind(t.Context(), name, p); err != nil {
		t.Fatal(err)
	}
	bound := time.Now()
	return max(0, locks.waitGone(t, value).Sub(bound))
}

// recordedShares are what HAMi chose, by container. The list ends with the last
// container in every version.
func recordedShares(t *testing.T, p *hamirecord.Pod) map[string][]allocation.Share {
	t.Helper()
	text, chosen := p.Written.Annotations[apinames.HAMiAllocation]
	if !chosen {
		return nil
	}
	list, err := hami.ParsePodShares(text)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(p.Submitted.InitContainers, p.Submitted.Containers)
	all = all[len(all)-len(list):]
	shares := map[string][]allocation.Share{}
	for i := range list {
		shares[all[i].Name] = byGPU(list.Of(i))
	}
	return shares
}
