package chart

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	podsPolicy = devicePlugin + "-pods"
	hamiOn     = "config.cluster.sgpu.hami.enabled=true"
)

// podAttempt is a write to a pod.
type podAttempt = write[corev1.Pod]

func TestPodsPolicy(t *testing.T) {
	const (
		ownNode = "heddle-device-plugin may write only pods of the Node that its own pod runs on, by the pod's own token"
		noLife  = "heddle-device-plugin may neither create nor delete a pod"
	)
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ml", Name: "train", UID: "u", ResourceVersion: "7", Labels: map[string]string{"app": "train"},
				Annotations: map[string]string{
					wellknown.HAMiBindPhase: "allocating", wellknown.HAMiAllocation: "[[]]", wellknown.SGPUBound: "{}", wellknown.SGPUAllocation: "{}",
				},
			},
			Spec:   corev1.PodSpec{NodeName: "n1", SchedulerName: "hami-scheduler", Containers: []corev1.Container{{Name: "main", Image: "a"}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
	}
	fields := func(words string) []string { return []string{"heddle-device-plugin may not change " + words} }
	for _, tt := range []struct {
		name string
		do   func(*podAttempt)
		deny []string
	}{
		{name: "nothing", do: func(*podAttempt) {}},
		{name: "the phase", do: func(a *podAttempt) { a.new.Annotations[wellknown.HAMiBindPhase] = "success" }},
		{name: "the phase for the first time", do: func(a *podAttempt) {
			a.old.Annotations = nil
			a.new.Annotations = map[string]string{wellknown.HAMiBindPhase: "failed"}
		}},
		{name: "shares", do: func(a *podAttempt) { a.new.Annotations[wellknown.SGPUBound] = `{"version":1}` }},
		{name: "shares for the first time", do: func(a *podAttempt) { delete(a.old.Annotations, wellknown.SGPUBound) }},
		{name: "shares that are no more", do: func(a *podAttempt) { delete(a.new.Annotations, wellknown.SGPUBound) }},
		{
			name: "what a scheduler chose", do: func(a *podAttempt) { a.new.Annotations[wellknown.SGPUAllocation] = `{"version":1}` },
			deny: fields("annotations " + wellknown.SGPUAllocation),
		},
		{name: "what the API server writes", do: func(a *podAttempt) { a.new.ResourceVersion, a.new.Generation = "8", 2 }},
		{
			name: "another annotation", do: func(a *podAttempt) { a.new.Annotations[wellknown.HAMiAllocation] = "[]" },
			deny: fields("annotations " + wellknown.HAMiAllocation),
		},
		{
			name: "another annotation removed", do: func(a *podAttempt) { delete(a.new.Annotations, wellknown.HAMiAllocation) },
			deny: fields("annotations " + wellknown.HAMiAllocation),
		},
		{name: "a label", do: func(a *podAttempt) { a.new.Labels["app"] = "x" }, deny: fields("metadata.labels")},
		{name: "a finalizer", do: func(a *podAttempt) { a.new.Finalizers = []string{"a/b"} }, deny: fields("metadata.finalizers")},
		{name: "an image", do: func(a *podAttempt) { a.new.Spec.Containers[0].Image = "evil" }, deny: fields("spec.containers")},
		{name: "its node", do: func(a *podAttempt) { a.new.Spec.NodeName = "n2" }, deny: fields("spec.nodeName")},
		{name: "the phase of its life", do: func(a *podAttempt) { a.new.Status.Phase = corev1.PodFailed }, deny: fields("status.phase")},
		{name: "a pod of another node", do: func(a *podAttempt) { a.old.Spec.NodeName, a.new.Spec.NodeName = "n2", "n2" }, deny: []string{ownNode}},
		{name: "a pod of no node", do: func(a *podAttempt) { a.old.Spec.NodeName, a.new.Spec.NodeName = "", "" }, deny: []string{ownNode}},
		{name: "a token without a node", do: func(a *podAttempt) { a.user()["extra"] = map[string]any{} }, deny: []string{ownNode}},
		{name: "a token without anything", do: func(a *podAttempt) { delete(a.user(), "extra") }, deny: []string{ownNode}},
		{name: "a token with two nodes", do: func(a *podAttempt) {
			a.user()["extra"] = map[string]any{nodeNameKey: []string{"n1", "n2"}}
		}, deny: []string{ownNode}},
		{name: "the status", do: func(a *podAttempt) { a.request["subResource"] = "status" }, deny: []string{noLife}},
		{name: "a new pod", do: func(a *podAttempt) { a.request["operation"], a.old = "CREATE", nil }, deny: []string{noLife, ownNode}},
		{name: "a pod deleted", do: func(a *podAttempt) { a.request["operation"], a.new = "DELETE", nil }, deny: []string{noLife}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &podAttempt{old: pod(), new: pod(), request: updating("train", devicePlugin, "n1")}
			tt.do(a)
			p := policyOf(t, renderDevice(t, "--set", hamiOn), podsPolicy)
			in := a.in(t, p)
			if !p.matched(in) {
				t.Fatal("the policy does not look at the request")
			}
			if diff := cmp.Diff(tt.deny, p.denied(t, in)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
			for _, other := range []string{"system:node:n1", "system:serviceaccount:heddle-system:heddle-feature-discovery"} {
				a.user()["username"] = other
				if p.matched(a.in(t, p)) {
					t.Errorf("the policy looks at requests of %s", other)
				}
			}
		})
	}
}
