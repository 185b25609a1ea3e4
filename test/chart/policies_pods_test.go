package chart

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/master/export"
)

func TestEventsPolicy(t *testing.T) {
	type eventWrite = write[corev1.Event]
	for daemon, objects := range map[string]rendered{
		devicePlugin: renderDevice(t), topoMaster: renderTopo(t), wellknown.FieldManager: render(t),
	} {
		event := func(kind, name string) *corev1.Event {
			return &corev1.Event{
				InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Reason: "Any",
				Source: corev1.EventSource{Component: daemon, Host: "n1"},
			}
		}
		base := func() *eventWrite {
			w := &eventWrite{new: event("Node", "n1"), request: updating("e", daemon, "n1")}
			w.request["operation"] = "CREATE"
			return w
		}
		again := func(w *eventWrite) { w.old, w.request["operation"] = event("Node", "n1"), "UPDATE" }
		checkPolicy(t, policyOf(t, objects, daemon+"-events"), daemon+"-events", base, append(byToken[corev1.Event](), []try[corev1.Event]{
			{"about a pod", func(w *eventWrite) { w.new = event("Pod", "p") }},
			{"about its Node", func(*eventWrite) {}},
			{"again", again},
			{"about another Node", func(w *eventWrite) { w.new = event("Node", "n2") }},
			{"about a Deployment", func(w *eventWrite) { w.new = event("Deployment", "d") }},
			{"as another node", func(w *eventWrite) { w.new.Source.Host = "n2" }},
			{"as the kubelet", func(w *eventWrite) { w.new.Source.Component = "kubelet" }},
			{"as no account", func(w *eventWrite) { w.new.Source = corev1.EventSource{} }},
			{"an Event of the kubelet changed", func(w *eventWrite) {
				again(w)
				w.old.Source.Component = "kubelet"
			}},
		}...))
	}
}

func TestPodsPolicy(t *testing.T) {
	base := func() *podWrite {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ml", Name: "train", UID: "u", ResourceVersion: "7", Labels: map[string]string{"app": "train"},
				Annotations: map[string]string{
					wellknown.HAMiBindPhase: "allocating", wellknown.HAMiAllocation: "[[]]", wellknown.SGPUBound: "{}", wellknown.SGPUAllocation: "{}",
				},
			},
			Spec:   corev1.PodSpec{NodeName: "n1", SchedulerName: "hami-scheduler", Containers: []corev1.Container{{Name: "main", Image: "a"}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
		return &podWrite{old: pod, new: pod.DeepCopy(), request: updating("train", devicePlugin, "n1")}
	}
	annotate := func(key, value string) func(*podWrite) {
		return func(w *podWrite) { w.new.Annotations[key] = value }
	}
	const pods = devicePlugin + "-pods"
	checkPolicy(t, policyOf(t, renderDevice(t, "--set", hamiOn), pods), pods, base, append(byToken[corev1.Pod](), []try[corev1.Pod]{
		{"nothing", func(*podWrite) {}},
		{"HAMi's phase", annotate(wellknown.HAMiBindPhase, "success")},
		{"HAMi's phase for the first time", func(w *podWrite) {
			w.old.Annotations, w.new.Annotations = nil, map[string]string{wellknown.HAMiBindPhase: "failed"}
		}},
		{"shares", annotate(wellknown.SGPUBound, `{"version":1}`)},
		{"shares that have ended", func(w *podWrite) { delete(w.new.Annotations, wellknown.SGPUBound) }},
		{"what a scheduler chose", annotate(wellknown.SGPUAllocation, `{"version":1}`)},
		{"what the API server writes", func(w *podWrite) { w.new.ResourceVersion, w.new.Generation = "8", 2 }},
		{"another annotation", annotate(wellknown.HAMiAllocation, "[]")},
		{"another annotation removed", func(w *podWrite) { delete(w.new.Annotations, wellknown.HAMiAllocation) }},
		{"other fields", func(w *podWrite) { w.new.Labels["app"], w.new.Finalizers = "x", []string{"a/b"} }},
		{"fields removed", func(w *podWrite) { w.new.Labels, w.new.Spec.SchedulerName, w.new.Status.Phase = nil, "", "" }},
		{"an image", func(w *podWrite) { w.new.Spec.Containers[0].Image = "evil" }},
		{"the phase of its life", func(w *podWrite) { w.new.Status.Phase = corev1.PodFailed }},
		{"a pod of another node", func(w *podWrite) { w.old.Spec.NodeName, w.new.Spec.NodeName = "n2", "n2" }},
		{"a pod of no node", func(w *podWrite) { w.old.Spec.NodeName, w.new.Spec.NodeName = "", "" }},
		{"the status", func(w *podWrite) { w.request["subResource"] = "status" }},
		{"a new pod", func(w *podWrite) { w.request["operation"], w.old = "CREATE", nil }},
		{"a pod deleted", func(w *podWrite) { w.request["operation"], w.new = "DELETE", nil }},
		{"a container beside it", func(w *podWrite) { w.request["subResource"] = "ephemeralcontainers" }},
		{"its size", func(w *podWrite) { w.request["subResource"] = "resize" }},
	}...))
}

// A node enters and renews itself in the list of withdrawn nodes, and no other.
func TestWithdrawnPolicy(t *testing.T) {
	type listWrite = write[corev1.ConfigMap]
	const withdrawn = devicePlugin + "-withdrawn"
	base := func() *listWrite {
		m := &corev1.ConfigMap{Data: map[string]string{"n2": "2026-11-30T10:00:00Z"}}
		return &listWrite{old: m.DeepCopy(), new: m, request: updating("heddle-withdrawn-nodes", devicePlugin, "n1")}
	}
	own := func(w *listWrite) { w.new.Data["n1"] = "2026-11-30T11:00:00Z" }
	tries := []try[corev1.ConfigMap]{
		{"its node", own},
		{"the first node", func(w *listWrite) { w.old.Data, w.new.Data = nil, map[string]string{"n1": "2026-11-30T11:00:00Z"} }},
		{"its node removed", func(w *listWrite) { w.old.Data["n1"] = "2026-11-30T11:00:00Z" }},
		{"another node", func(w *listWrite) { w.new.Data["n3"] = "2026-11-30T11:00:00Z" }},
		{"another node for longer", func(w *listWrite) { own(w); w.new.Data["n2"] = "2027-11-30T11:00:00Z" }},
		{"another node removed", func(w *listWrite) { own(w); delete(w.new.Data, "n2") }},
		{"for ever", func(w *listWrite) { w.new.Immutable = new(true) }},
		{"made", func(w *listWrite) { w.request["operation"], w.old = "CREATE", nil }},
		{"deleted", func(w *listWrite) { w.request["operation"], w.new = "DELETE", nil }},
	}
	for _, no := range byToken[corev1.ConfigMap]() {
		tries = append(tries, try[corev1.ConfigMap]{no.name, func(w *listWrite) { own(w); no.do(w) }})
	}
	checkPolicy(t, policyOf(t, renderDevice(t), withdrawn), withdrawn, base, tries)
}

func TestEvictionsPolicy(t *testing.T) {
	const evictions = devicePlugin + "-evictions"
	base := func() *podWrite {
		w := &podWrite{new: &corev1.Pod{}, request: updating("train", devicePlugin, "n1")}
		w.request["operation"], w.request["subResource"], w.request["namespace"] = "CREATE", "eviction", "ml"
		return w
	}
	of := func(namespace string) func(*podWrite) {
		return func(w *podWrite) { w.request["namespace"] = namespace }
	}
	checkPolicy(t, policyOf(t, renderDevice(t, "--set", "config.cluster.mode=sgpu"), evictions), evictions, base, append(byToken[corev1.Pod](), []try[corev1.Pod]{
		{"a user's pod", of("ml")},
		{"a pod of the control plane", of("kube-system")},
		{"a pod of heddle", of("heddle-system")},
	}...))
}

// An object of another project is heddle's by its label.
func TestExportsPolicy(t *testing.T) {
	const exports = topoMaster + "-exports"
	type objectWrite = write[metav1.PartialObjectMetadata]
	ours := map[string]string{export.ManagedByKey: export.ManagedBy}
	base := func() *objectWrite {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "leaf-a", Labels: ours}}
		return &objectWrite{old: o.DeepCopy(), new: o, request: updating("leaf-a", topoMaster, "n1")}
	}
	deleted := func(w *objectWrite) { w.new, w.request["operation"] = nil, "DELETE" }
	tries := []try[metav1.PartialObjectMetadata]{
		{"a new one", func(w *objectWrite) { w.old, w.request["operation"] = nil, "CREATE" }},
		{"a new one without the label", func(w *objectWrite) { w.old, w.new.Labels, w.request["operation"] = nil, nil, "CREATE" }},
		{"changed", func(*objectWrite) {}},
		{"deleted", deleted},
		{"another's claimed", func(w *objectWrite) { w.old.Labels = nil }},
		{"another's deleted", func(w *objectWrite) {
			deleted(w)
			w.old.Labels = map[string]string{export.ManagedByKey: "Helm"}
		}},
	}
	for _, group := range []string{"kueue.x-k8s.io", "kai.scheduler"} {
		for _, operation := range []string{"CREATE", "UPDATE", "DELETE"} {
			tries = append(tries, try[metav1.PartialObjectMetadata]{operation + " of another's Topology of " + group, func(w *objectWrite) {
				w.resource = metav1.GroupResource{Group: group, Resource: "topologies"}
				w.old.Labels, w.new.Labels, w.request["operation"] = nil, nil, operation
			}})
		}
	}
	checkPolicy(t, policyOf(t, renderTopo(t), exports), exports, base, tries)
}

func TestSchedulerPolicy(t *testing.T) {
	const scheduler = "heddle-scheduler"
	base := func() *podWrite {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "p", Labels: map[string]string{"app": "train"}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
			}},
		}
		w := &podWrite{old: pod, new: pod.DeepCopy(), request: updating("p", scheduler, "n1")}
		w.request["subResource"] = "status"
		return w
	}
	pod := func(do func(*corev1.Pod)) func(*podWrite) { return func(w *podWrite) { do(w.new) } }
	checkPolicy(t, policyOf(t, render(t, "--set", "gpuScheduler.enabled=true"), scheduler), scheduler, base, []try[corev1.Pod]{
		{"why it waits", pod(func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonUnschedulable })},
		{"where it is nominated", pod(func(p *corev1.Pod) { p.Status.NominatedNodeName = "n2" })},
		{"preempted", pod(func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
		})},
		{"the first condition of all", func(w *podWrite) {
			w.old.Status = corev1.PodStatus{Phase: corev1.PodRunning}
			w.new.Status.Conditions = w.new.Status.Conditions[:1]
		}},
		{"a claim", pod(func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c"}
		})},
		{"failed", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })},
		{"not ready", pod(func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse })},
		{"conditions removed", pod(func(p *corev1.Pod) { p.Status.Conditions = nil })},
		{"an address removed", func(w *podWrite) { w.old.Status.PodIP = "10.0.0.1" }},
		{"an address", pod(func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" })},
		{"a label", pod(func(p *corev1.Pod) { p.Labels["app"] = "x" })},
		{"labels removed", pod(func(p *corev1.Pod) { p.Labels = nil })},
		{"what the API server writes", pod(func(p *corev1.Pod) {
			p.ResourceVersion, p.ManagedFields = "8", []metav1.ManagedFieldsEntry{{Manager: "x"}}
		})},
	})
}

func TestIncompleteSharesPolicy(t *testing.T) {
	base := func() *podWrite {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "p"}}
		w := &podWrite{new: pod, request: updating("p", devicePlugin, "n1")}
		w.request["operation"] = "CREATE"
		return w
	}
	limits := func(names ...string) corev1.Container {
		c := corev1.Container{Name: "c"}
		for _, name := range names {
			if c.Resources.Limits == nil {
				c.Resources.Limits = corev1.ResourceList{}
			}
			c.Resources.Limits[corev1.ResourceName(name)] = resource.MustParse("1")
		}
		return c
	}
	p := policyOf(t, renderDevice(t, "--set", "admissionPolicy.incompleteShares=Deny"), "heddle-incomplete-shares")
	var tries []try[corev1.Pod]
	for name, containers := range map[string][2][]corev1.Container{
		"no GPU":                             {{limits()}, nil},
		"a GPU":                              {{limits("nvidia.com/gpu", "cpu")}, nil},
		"a share":                            {{limits(), limits("nvidia.com/sgpu", "nvidia.com/vcore", "nvidia.com/vmemory")}, {limits("nvidia.com/sgpu")}},
		"compute alone":                      {{limits("nvidia.com/vcore", "cpu")}, nil},
		"memory beside a whole GPU":          {{limits("nvidia.com/gpu", "nvidia.com/vmemory")}, nil},
		"compute of another container's GPU": {{limits("nvidia.com/sgpu"), limits("nvidia.com/vcore")}, nil},
		"an init container's compute":        {{limits("nvidia.com/sgpu")}, {limits("nvidia.com/vcore")}},
	} {
		tries = append(tries, try[corev1.Pod]{name, func(w *podWrite) {
			w.new.Spec.Containers, w.new.Spec.InitContainers = containers[0], containers[1]
		}})
	}
	slices.SortFunc(tries, func(a, b try[corev1.Pod]) int { return strings.Compare(a.name, b.name) })
	checkPolicy(t, p, "heddle-incomplete-shares", base, tries)
}

func TestSharesPolicy(t *testing.T) {
	const account = "system:serviceaccount:heddle-system:"
	base := func() *podWrite {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "p", Annotations: map[string]string{"a": "b"}}}
		return &podWrite{old: pod, new: pod.DeepCopy(), request: updating("p", devicePlugin, "n1")}
	}
	var tries []try[corev1.Pod]
	for _, key := range []string{"a", wellknown.SGPUAllocation, wellknown.SGPUBound, wellknown.HAMiAllocation} {
		for _, user := range []string{
			"alice", account + "heddle-scheduler", account + "heddle-device-plugin", "system:serviceaccount:ml:heddle-device-plugin", "system:serviceaccount:velero:velero", patchesNodes,
		} {
			tries = append(tries, try[corev1.Pod]{key + " by " + user, func(w *podWrite) {
				w.user()["username"], w.new.Annotations[key] = user, "{}"
			}})
		}
		tries = append(tries, try[corev1.Pod]{key + " in a new pod", func(w *podWrite) {
			w.request["operation"], w.old, w.new.Annotations[key] = "CREATE", nil, ""
			w.user()["username"] = "alice"
		}}, try[corev1.Pod]{key + " taken away", func(w *podWrite) {
			w.user()["username"], w.old.Annotations[key] = "alice", "{}"
		}}, try[corev1.Pod]{key + " unchanged", func(w *podWrite) {
			w.user()["username"], w.old.Annotations[key], w.new.Annotations[key] = "system:node:n1", "{}", "{}"
			w.new.Status.Phase = corev1.PodFailed
		}})
	}
	for _, sub := range []string{"status", "binding", "ephemeralcontainers", "resize"} {
		tries = append(tries, try[corev1.Pod]{"by " + sub, func(w *podWrite) {
			w.request["subResource"], w.user()["username"], w.new.Annotations[wellknown.SGPUBound] = sub, "alice", "{}"
		}})
	}
	tries = append(tries, try[corev1.Pod]{"by a Binding", func(w *podWrite) {
		w.request["operation"], w.old, w.resource.Resource = "CREATE", nil, "bindings"
		w.user()["username"], w.new.Annotations[wellknown.SGPUBound] = "alice", "{}"
	}})
	p := policyOf(t, renderDevice(t, "--set", hamiOn, "--set", "admissionPolicy.shareWriters={system:serviceaccount:velero:velero}"), sharesPolicy)
	checkPolicy(t, p, sharesPolicy, base, tries)

	// HAMi's own annotation is open to all where no node works with HAMi.
	for args, guarded := range map[string]bool{
		hamiOn: true, "config.cluster.domains.vendor=metax-tech.com": true, "gpuScheduler.enabled=true": true,
		"config.cluster.domains.vendor=nvidia.com": false, "config.cluster.sgpu.hami=false": false,
	} {
		p := policyOf(t, renderDevice(t, "--set", args), sharesPolicy)
		if strings.Contains(p.spec.MatchConditions[0].Expression, wellknown.HAMiAllocation) != guarded {
			t.Errorf("with %s the policy looks at HAMi's annotation: %v, want %v", args, !guarded, guarded)
		}
	}
}
