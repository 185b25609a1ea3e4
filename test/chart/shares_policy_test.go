package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

func TestSharesPolicy(t *testing.T) {
	const account = "system:serviceaccount:heddle-system:"
	annotated := func(key string) func(*podAttempt) {
		return func(a *podAttempt) { a.new.Annotations[key] = "{}" }
	}
	created := func(key string) func(*podAttempt) {
		return func(a *podAttempt) {
			a.request["operation"], a.old = "CREATE", nil
			a.new.Annotations[key] = ""
		}
	}
	removed := func(key string) func(*podAttempt) {
		return func(a *podAttempt) { a.old.Annotations[key] = "{}" }
	}
	denied := func(key, by string) []string {
		return []string{"annotation " + key + " is written by " + by + " alone; another writer must be in the chart's admissionPolicy.shareWriters"}
	}
	allocation, bound := denied(wellknown.SGPUAllocation, "heddle"), denied(wellknown.SGPUBound, "heddle")
	for _, tt := range []struct {
		name, user string
		do         func(*podAttempt)
		// looks reports that the policy looks at the request.
		looks bool
		deny  []string
	}{
		{"another annotation", "alice", annotated("a"), false, nil},
		{"no annotations", "alice", func(a *podAttempt) { a.old.Annotations, a.new.Annotations = nil, nil }, false, nil},
		{"a pod with both is changed", "system:node:n1", func(a *podAttempt) {
			for _, key := range []string{wellknown.SGPUAllocation, wellknown.SGPUBound} {
				a.old.Annotations[key], a.new.Annotations[key] = "{}", "{}"
			}
			a.new.Status.Phase = corev1.PodFailed
		}, false, nil},
		{"a decision forged", "alice", annotated(wellknown.SGPUAllocation), true, allocation},
		{"a decision in a new pod", "alice", created(wellknown.SGPUAllocation), true, allocation},
		{"a decision taken away", "alice", removed(wellknown.SGPUAllocation), true, allocation},
		{"a decision of the scheduler", account + "heddle-scheduler", annotated(wellknown.SGPUAllocation), true, nil},
		{"a decision of the node", account + "heddle-device-plugin", annotated(wellknown.SGPUAllocation), true, allocation},
		{"what is bound, forged", "alice", annotated(wellknown.SGPUBound), true, bound},
		{"what is bound, in a new pod", "alice", created(wellknown.SGPUBound), true, bound},
		{"what is bound, taken away", "alice", removed(wellknown.SGPUBound), true, bound},
		{"what is bound, of the node", account + "heddle-device-plugin", annotated(wellknown.SGPUBound), true, nil},
		{"what is bound, of another namespace's account", "system:serviceaccount:ml:heddle-device-plugin", annotated(wellknown.SGPUBound), true, bound},
		{"both, of a configured user", "system:serviceaccount:hami:s", func(a *podAttempt) {
			annotated(wellknown.SGPUBound)(a)
			annotated(wellknown.SGPUAllocation)(a)
		}, true, nil},
		{"HAMi's, forged", "alice", annotated(wellknown.HAMiAllocation), true, denied(wellknown.HAMiAllocation, "HAMi")},
		{"HAMi's", "system:serviceaccount:hami:s", annotated(wellknown.HAMiAllocation), true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := func() *corev1.Pod {
				return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "p", Annotations: map[string]string{"a": "b"}}}
			}
			a := &podAttempt{old: pod(), new: pod(), request: updating("p", devicePlugin, "n1")}
			a.user()["username"] = tt.user
			tt.do(a)
			p := policyOf(t, renderDevice(t, "--set", hamiOn, "--set", "admissionPolicy.shareWriters={system:serviceaccount:hami:s}"), "heddle-shares")
			in := a.in(t, p)
			if got := p.matched(in); got != tt.looks {
				t.Errorf("the policy looks at the request: %t", got)
			}
			if diff := cmp.Diff(tt.deny, p.denied(t, in)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
		})
	}
}

// HAMi's own annotation is for its configured account alone, and open to all where
// none is configured or HAMi is off.
func TestSharesPolicyLeavesHAMiAlone(t *testing.T) {
	for _, args := range [][]string{
		{"--set", hamiOn},
		{"--set", "admissionPolicy.shareWriters={a}"},
		{"--set", "gpuScheduler.deploy=true"},
	} {
		p := policyOf(t, renderDevice(t, args...), "heddle-shares")
		if strings.Contains(p.spec.MatchConditions[0].Expression, wellknown.HAMiAllocation) {
			t.Errorf("with %v the policy looks at HAMi's annotation", args)
		}
	}
}
