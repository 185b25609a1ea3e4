package chart

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestEventsPolicy(t *testing.T) {
	const (
		ownNode = "heddle-device-plugin may write only Events of the Node that its own pod runs on, by the pod's own token"
		about   = "heddle-device-plugin may write Events about pods and its own Node only"
	)
	type attempt = write[corev1.Event]
	event := func(kind, name string) *corev1.Event {
		return &corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Reason: "SGPURejected",
			Source: corev1.EventSource{Component: devicePlugin, Host: "n1"},
		}
	}
	for _, tt := range []struct {
		name string
		do   func(*attempt)
		deny []string
	}{
		{"about a pod", func(*attempt) {}, nil},
		{"about its Node", func(a *attempt) { a.new = event("Node", "n1") }, nil},
		{"again", func(a *attempt) { a.old = event("Pod", "p") }, nil},
		{"about another Node", func(a *attempt) { a.new = event("Node", "n2") }, []string{about}},
		{"about a Deployment", func(a *attempt) { a.new = event("Deployment", "d") }, []string{about}},
		{"as another node", func(a *attempt) { a.new.Source.Host = "n2" }, []string{ownNode}},
		{"as the kubelet", func(a *attempt) { a.new.Source.Component = "kubelet" }, []string{ownNode}},
		{"as no account", func(a *attempt) { a.new.Source = corev1.EventSource{} }, []string{ownNode}},
		{"an Event of the kubelet changed", func(a *attempt) {
			a.old = event("Pod", "p")
			a.old.Source.Component = "kubelet"
		}, []string{ownNode}},
		{"a token without a node", func(a *attempt) { delete(a.user(), "extra") }, []string{ownNode}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &attempt{new: event("Pod", "p"), request: updating("e", devicePlugin, "n1")}
			tt.do(a)
			p := policyOf(t, renderDevice(t), "heddle-device-plugin-events")
			in := a.in(t, p)
			if !p.matched(in) {
				t.Fatal("the policy does not look at the request")
			}
			if diff := cmp.Diff(tt.deny, p.denied(t, in)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
			a.user()["username"] = "system:node:n1"
			if p.matched(a.in(t, p)) {
				t.Error("the policy looks at requests of others")
			}
		})
	}
}
