//go:build e2e && linux

package devices

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

// hamiConfig is a node for HAMi as docs/operate/hami.md has it.
const hamiConfig = sharedGPUs + "sgpu: {unscheduled: reject, rejectedFor: 0s, hami: true}\n"

// hamiRejected lists the decisions of a recording that the node rejects, with the reason.
var hamiRejected = map[string]string{
	// HAMi does not read the annotation.
	hamirecord.V26 + "/nvuse": "the pod does not select it", hamirecord.V210 + "/nvuse": "the pod does not select it",
	// It knows no policies, and its GPU has consumers with the default.
	hamirecord.V26 + "/burst": "its consumers are fixed-share, not burst-share",
}

// TestHAMiSide drives the node by exactly what unmodified HAMi wrote, version by version: the
// webhook's part of the pod, the decision, the node lock, the Binding. The rig is the recorded
// node. All pods without init containers are on it at once: what it has given out is then what is
// on HAMi's account.
func TestHAMiSide(t *testing.T) {
	// HAMi is on from the start: a node that counted vmemory before goes on counting it, and its
	// kubelet takes no vmemory with a unit (docs/operate/hami.md).
	r := newRig(t, options{name: "hami", config: hamiConfig})
	for _, version := range hamirecord.Versions() {
		t.Run(version, func(t *testing.T) {
			h := hamirecord.Load(t, version)
			want, running := tally{}, map[string]*hamirecord.Pod{}
			for i := range h.Pods {
				p := &h.Pods[i]
				if len(p.Submitted.InitContainers) > 0 {
					continue
				}
				r.replay(t, p)
				if reason, rejected := hamiRejected[version+"/"+p.Name]; rejected {
					r.waitEvent(t, p.Name, "SGPURejected", reason)
					r.waitPhase(t, p.Name, "failed")
					continue
				}
				// HAMi saw each pod's devices prepared before the next: their policies decide.
				r.waitPhase(t, p.Name, "success")
				running[p.Name] = p
			}
			for name, p := range running {
				r.waitReady(t, name)
				for container, shares := range recordedShares(t, p) {
					r.hasShares(t, name, container, shares...)
					want.add(shares)
				}
			}
			if diff := cmp.Diff(want, r.count(t)); diff != "" {
				t.Errorf("given out of the GPUs (-HAMi's account +node's):\n%s", diff)
			}
		})
	}
}

// replay creates a recorded pod as it is after HAMi's webhook, with the rig's image, and writes the
// decision of HAMi's Filter, the node lock and the annotations of its Bind, and the Binding.
func (r *rig) replay(t *testing.T, p *hamirecord.Pod) {
	t.Helper()
	var boxes []box
	for i := range p.Submitted.Containers {
		boxes = append(boxes, box{name: p.Submitted.Containers[i].Name, more: p.Submitted.Containers[i].Resources()})
	}
	pod := besides(r.pod(p.Name, boxes[0]), boxes[1:]...)
	admitted := p.Admitted()
	pod.Annotations, pod.Spec.SchedulerName = admitted.Annotations, admitted.Spec.SchedulerName
	r.create(t, pod)
	annotations, labels := p.Decision()
	decision, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations, "labels": labels}})
	if err != nil {
		t.Fatal(err)
	}
	pods := r.client.CoreV1().Pods(namespace)
	if _, err := pods.Patch(t.Context(), p.Name, types.MergePatchType, decision, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	r.waitUnlocked(t)
	lock, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{apinames.HAMiLock: p.Lock(p.Name)}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.CoreV1().Nodes().Patch(t.Context(), r.Node(), types.MergePatchType, lock, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.annotatePod(t.Context(), p.Name, p.Binding()); err != nil {
		t.Fatal(err)
	}
	err = pods.Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: r.Node()},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.waitUnlocked(t)
}

// waitUnlocked waits until nobody holds HAMi's lock of the node.
func (r *rig) waitUnlocked(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		if held, locked := r.node(t).Annotations[apinames.HAMiLock]; locked {
			return "the node is locked by " + held
		}
		return ""
	})
}

// waitPhase waits for hami.io/bind-phase of a pod.
func (r *rig) waitPhase(t *testing.T, pod, want string) {
	t.Helper()
	r.waitPod(t, pod, func(p *corev1.Pod) string {
		if got := p.Annotations[apinames.HAMiBindPhase]; got != want {
			return "its bind-phase is " + got + ", want " + want
		}
		return ""
	})
}

// recordedShares returns the shares that HAMi chose, by container. The list ends with the last
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
