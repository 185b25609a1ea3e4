package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

const (
	sharesPolicy = "heddle-shares"
	hamiOn       = "config.cluster.sgpu.hami=true"
)

type (
	nodeWrite = write[corev1.Node]
	podWrite  = write[corev1.Pod]
)

func label(key, value string) func(*nodeWrite) {
	return func(w *nodeWrite) { w.new.Labels[key] = value }
}

func annotation(key, value string) func(*nodeWrite) {
	return func(w *nodeWrite) { w.new.Annotations[key] = value }
}

func taint(key string, effect corev1.TaintEffect) func(*nodeWrite) {
	return func(w *nodeWrite) {
		w.new.Spec.Taints = append(w.new.Spec.Taints, corev1.Taint{Key: key, Value: "v", Effect: effect})
	}
}

func status(do func(*corev1.NodeStatus)) func(*nodeWrite) {
	return func(w *nodeWrite) {
		w.request["subResource"] = "status"
		do(&w.new.Status)
	}
}

func condition(kind corev1.NodeConditionType) func(*nodeWrite) {
	return status(func(s *corev1.NodeStatus) {
		s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse})
	})
}

// byToken are tokens that a pod of the node n1 does not have.
func byToken[T any]() []try[T] {
	return []try[T]{
		{"a token without a node", func(w *write[T]) { w.user()["extra"] = map[string]any{} }},
		{"a token without anything", func(w *write[T]) { delete(w.user(), "extra") }},
		{"a token with two nodes", func(w *write[T]) { w.user()["extra"] = map[string]any{nodeNameKey: []string{"n1", "n2"}} }},
	}
}

// toNode are writes about which each policy of Nodes has its word.
func toNode() []try[corev1.Node] {
	return append([]try[corev1.Node]{
		{"nothing", func(*nodeWrite) {}},
		{"what the API server writes", func(w *nodeWrite) {
			w.new.ResourceVersion, w.new.Generation, w.new.ManagedFields = "8", 2, nil
		}},
		{"a label of what a GPU is", label("nvidia.com/gpu.product", "NVIDIA-H20")},
		{"another owner's label under the vendor's domain", label("nvidia.com/gpu.deploy.driver", "false")},
		{"a label of Kubernetes", label("kubernetes.io/hostname", "n2")},
		{"a label by the status", func(w *nodeWrite) {
			w.request["subResource"] = "status"
			w.new.Labels["nvidia.com/gpu.product"] = "x"
		}},
		{"a GPU that an operator took out", annotation(wellknown.CordonedGPUs, "GPU-a")},
		{"a release of the driver", annotation(wellknown.GPURelease, `{"until":"2026-11-22T23:30:00Z"}`)},
		{"other annotations", func(w *nodeWrite) {
			w.new.Annotations["csi.volume.kubernetes.io/nodeid"] = "{}"
			delete(w.new.Annotations, "node.alpha.kubernetes.io/ttl")
		}},
		{"another taint", taint("example.com/x", corev1.TaintEffectNoSchedule)},
		{"another taint removed", func(w *nodeWrite) { w.new.Spec.Taints = nil }},
		{"the taint of remediation", taint(wellknown.UnhealthyGPU, corev1.TaintEffectNoSchedule)},
		{"the taint of remediation removed", func(w *nodeWrite) {
			taint(wellknown.UnhealthyGPU, corev1.TaintEffectNoSchedule)(&nodeWrite{new: w.old})
		}},
		{"cordoned", func(w *nodeWrite) { w.new.Spec.Unschedulable = true }},
		{"other fields", func(w *nodeWrite) { w.new.Spec.ProviderID, w.new.Finalizers = "", []string{"a/b"} }},
		{"the kubelet's condition", status(func(s *corev1.NodeStatus) { s.Conditions[1].Status = corev1.ConditionFalse })},
		{"the kubelet's condition removed", status(func(s *corev1.NodeStatus) { s.Conditions = s.Conditions[:2] })},
		{"a second one of the kubelet's condition", condition(corev1.NodeReady)},
		{"a new condition", condition("GPUReady")},
		{"the condition of the fabric", condition(wellknown.ConditionFabric)},
		{"the condition of modes", condition(wellknown.ConditionModes)},
		{"the condition of devices removed", status(func(s *corev1.NodeStatus) { s.Conditions = s.Conditions[1:] })},
		{"all conditions removed", status(func(s *corev1.NodeStatus) { s.Conditions = nil })},
		{"capacity", status(func(s *corev1.NodeStatus) {
			s.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("9")}
		})},
		{"images removed", status(func(s *corev1.NodeStatus) { s.Images = nil })},
		{"another subresource", func(w *nodeWrite) { w.request["subResource"] = "proxy" }},
		{"another Node", func(w *nodeWrite) { w.request["name"] = "n2" }},
		{"a new Node", func(w *nodeWrite) { w.request["operation"], w.old, w.new = "CREATE", nil, &corev1.Node{} }},
		{"a Node deleted", func(w *nodeWrite) { w.request["operation"], w.old, w.new = "DELETE", &corev1.Node{}, nil }},
	}, byToken[corev1.Node]()...)
}

// nodeBy is a write to the Node n1 by a daemon's token.
func nodeBy(daemon string) func() *nodeWrite {
	return func() *nodeWrite {
		w := &nodeWrite{old: node(), new: node(), request: updating("n1", daemon, "n1")}
		for _, n := range []*corev1.Node{w.old, w.new} {
			n.Status = corev1.NodeStatus{
				Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
				Conditions: []corev1.NodeCondition{
					{Type: wellknown.ConditionDevices, Status: corev1.ConditionTrue},
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
					{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
				},
				Images: []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 7}},
			}
			n.Labels["heddle.dev/topology.leaf"] = "leaf-a"
		}
		return w
	}
}

func TestDiscoveryPolicy(t *testing.T) {
	const retired = "old.example.com/gpu.product"
	p := loadPolicy(t, "--set", "config.cluster.labels[0].key=ring", "--set", "config.cluster.labels[0].value=node.name",
		"--set", "admissionPolicy.extraLabelKeys={example.com/*.size}")
	checkPolicy(t, p, wellknown.FieldManager, nodeBy(wellknown.FieldManager), append(toNode(), []try[corev1.Node]{
		{"a label of heddle's by pattern", label("nvidia.com/gpu.NVIDIA-L40S.count", "3")},
		{"a MIG label", label("nvidia.com/mig-1g.10gb.count", "7")},
		{"the label of a rule", label("ring", "ff")},
		{"a label by a pattern of the administrator", label("example.com/a.size", "1")},
		{"a label that only looks like the pattern", label("nvidia.com/gpu..count", "3")},
		{"a removed label that another manager holds too", func(w *nodeWrite) { delete(w.new.Labels, "rack") }},
		{"a label of a retired rule removed", func(w *nodeWrite) { delete(w.new.Labels, retired) }},
		{"the same changed", label(retired, "Y")},
		{"a label of Kubernetes removed under forged records", func(w *nodeWrite) {
			delete(w.new.Labels, "kubernetes.io/hostname")
			w.old.ManagedFields = w.old.ManagedFields[1:]
		}},
		{"a label removed without a recorded manager", func(w *nodeWrite) {
			delete(w.new.Labels, "rack")
			w.old.ManagedFields = nil
		}},
		{"its annotation", annotation(wellknown.OwnedTaints, "[]")},
		{"a taint of heddle's", taint("nvidia.com/gpu.product", corev1.TaintEffectNoSchedule)},
		{"a taint of heddle's removed", func(w *nodeWrite) { taint("heddle.dev/node.usage", "NoExecute")(&nodeWrite{new: w.old}) }},
		{"a taint of heddle's that evicts", taint("heddle.dev/node.usage", corev1.TaintEffectNoExecute)},
	}...))
}

func TestDevicePolicy(t *testing.T) {
	checkPolicy(t, policyOf(t, renderDevice(t), devicePlugin), devicePlugin, nodeBy(devicePlugin), append(toNode(), []try[corev1.Node]{
		{"its annotation", annotation(wellknown.GPUTopology, `{"1":{}}`)},
		{"its annotation removed", func(w *nodeWrite) { w.old.Annotations[wellknown.SharedGPUs] = "{}" }},
		{"its condition", status(func(s *corev1.NodeStatus) { s.Conditions[0].Status = corev1.ConditionFalse })},
		{"its condition for the first time, at the end", func(w *nodeWrite) {
			w.request["subResource"] = "status"
			w.old.Status.Conditions = w.old.Status.Conditions[1:]
			c := w.new.Status.Conditions
			w.new.Status.Conditions = append(slices.Clone(c[1:]), c[0])
		}},
		{"the first condition of all", func(w *nodeWrite) {
			w.request["subResource"] = "status"
			w.old.Status, w.new.Status = corev1.NodeStatus{}, corev1.NodeStatus{Conditions: w.new.Status.Conditions[:1]}
		}},
		{"an annotation by the status", func(w *nodeWrite) {
			w.request["subResource"] = "status"
			w.new.Annotations["example.com/x"] = "y"
		}},
	}...))
}

func TestTopoMasterPolicy(t *testing.T) {
	topograph := func(w *nodeWrite) { w.old.Labels["fabric.topograph.run/tier-0"] = "leaf-b" }
	for name, args := range map[string][]string{
		topoMaster: nil, topoMaster + "-topograph": {"--set", "topoDiscovery.master.exports={labels,topograph}"},
	} {
		checkPolicy(t, policyOf(t, renderTopo(t, args...), topoMaster), name, nodeBy(topoMaster), append(toNode(), []try[corev1.Node]{
			{"a group", label("heddle.dev/topology.leaf", "leaf-b")},
			{"a group removed", func(w *nodeWrite) { delete(w.new.Labels, "heddle.dev/topology.leaf") }},
			{"a shape", label("heddle.dev/topology-shape", "spine.leaf")},
			{"topograph's keys", label("accelerator.topograph.run/domain", "nvlink-b")},
			{"another manager's keys", topograph},
			{"keys of an export that is off", func(w *nodeWrite) {
				topograph(w)
				w.old.ManagedFields = append(w.old.ManagedFields,
					managed(publish.FieldManager, metav1.ManagedFieldsOperationApply, "fabric.topograph.run/tier-0"))
			}},
			{"a key that only begins so", label("heddle.dev/topology.", "x")},
		}...))
	}
}

func TestTopoWorkerPolicy(t *testing.T) {
	type topologyWrite = write[v1alpha1.NodeTopology]
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u"}
	base := func() *topologyWrite {
		n := &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "n1", OwnerReferences: []metav1.OwnerReference{owner}}}
		return &topologyWrite{old: n.DeepCopy(), new: n, request: updating("n1", topoWorker, "n1")}
	}
	checkPolicy(t, policyOf(t, renderTopo(t), topoWorker), topoWorker, base, append(byToken[v1alpha1.NodeTopology](), []try[v1alpha1.NodeTopology]{
		{"its own", func(*topologyWrite) {}},
		{"its heartbeat", func(w *topologyWrite) { w.request["subResource"] = "status" }},
		{"another node's", func(w *topologyWrite) { w.new.Name, w.new.OwnerReferences[0].Name = "n2", "n2" }},
		{"owned by another Node", func(w *topologyWrite) { w.new.OwnerReferences[0].Name = "n2" }},
		{"owned by two", func(w *topologyWrite) { w.new.OwnerReferences = append(w.new.OwnerReferences, owner) }},
		{"without an owner", func(w *topologyWrite) { w.new.OwnerReferences = nil }},
		{"deleted", func(w *topologyWrite) { w.new, w.request["operation"] = nil, "DELETE" }},
	}...))

	// The master names the worker that discovers a leaf, and cannot forge heartbeats.
	at := metav1.Now().Rfc3339Copy()
	base = func() *topologyWrite {
		n := &v1alpha1.NodeTopology{Status: v1alpha1.NodeTopologyStatus{HeartbeatTime: &at}}
		w := &topologyWrite{old: n, new: n.DeepCopy(), request: updating("n1", topoMaster, "n7")}
		w.request["subResource"] = "status"
		return w
	}
	const walks = topoMaster + "-walks"
	checkPolicy(t, policyOf(t, renderTopo(t), walks), walks, base, []try[v1alpha1.NodeTopology]{
		{"what is known of the cables", func(w *topologyWrite) {
			w.new.Status.Leaf, w.new.Status.Rails, w.new.Status.FindingCount = "leaf-a", "7/8", new(int32(1))
			w.new.Status.Findings = []v1alpha1.Finding{{Kind: "dead", Message: "x"}}
			w.new.Status.Conditions = []metav1.Condition{{Type: wellknown.ConditionFabric}}
		}},
		{"who walks", func(w *topologyWrite) { w.new.Status.Walk = []string{"a"} }},
		{"a heartbeat taken away", func(w *topologyWrite) { w.new.Status.HeartbeatTime = nil }},
		{"a forged heartbeat", func(w *topologyWrite) { w.new.Status.HeartbeatTime = &metav1.Time{Time: at.AddDate(1, 0, 0)} }},
		{"the report", func(w *topologyWrite) { delete(w.request, "subResource") }},
	})
}

func TestEventsPolicy(t *testing.T) {
	type eventWrite = write[corev1.Event]
	event := func(kind, name string) *corev1.Event {
		return &corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Reason: "SGPURejected",
			Source: corev1.EventSource{Component: devicePlugin, Host: "n1"},
		}
	}
	base := func() *eventWrite {
		return &eventWrite{new: event("Pod", "p"), request: updating("e", devicePlugin, "n1")}
	}
	const events = devicePlugin + "-events"
	checkPolicy(t, policyOf(t, renderDevice(t), events), events, base, append(byToken[corev1.Event](), []try[corev1.Event]{
		{"about a pod", func(*eventWrite) {}},
		{"about its Node", func(w *eventWrite) { w.new = event("Node", "n1") }},
		{"again", func(w *eventWrite) { w.old = event("Pod", "p") }},
		{"about another Node", func(w *eventWrite) { w.new = event("Node", "n2") }},
		{"about a Deployment", func(w *eventWrite) { w.new = event("Deployment", "d") }},
		{"as another node", func(w *eventWrite) { w.new.Source.Host = "n2" }},
		{"as the kubelet", func(w *eventWrite) { w.new.Source.Component = "kubelet" }},
		{"as no account", func(w *eventWrite) { w.new.Source = corev1.EventSource{} }},
		{"an Event of the kubelet changed", func(w *eventWrite) {
			w.old = event("Pod", "p")
			w.old.Source.Component = "kubelet"
		}},
	}...))
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
		{"an image", func(w *podWrite) { w.new.Spec.Containers[0].Image = "evil" }},
		{"the phase of its life", func(w *podWrite) { w.new.Status.Phase = corev1.PodFailed }},
		{"a pod of another node", func(w *podWrite) { w.old.Spec.NodeName, w.new.Spec.NodeName = "n2", "n2" }},
		{"a pod of no node", func(w *podWrite) { w.old.Spec.NodeName, w.new.Spec.NodeName = "", "" }},
		{"the status", func(w *podWrite) { w.request["subResource"] = "status" }},
		{"a new pod", func(w *podWrite) { w.request["operation"], w.old = "CREATE", nil }},
		{"a pod deleted", func(w *podWrite) { w.request["operation"], w.new = "DELETE", nil }},
	}...))
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

func TestIncompleteSharesPolicy(t *testing.T) {
	base := func() *podWrite {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "p"}}
		return &podWrite{new: pod, request: updating("p", devicePlugin, "n1")}
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

// The policy allows exactly what the code writes, and looks at nothing but
// Nodes: one that fails closed on pods would stop the cluster with its own bug.
func TestDevicePolicyKeys(t *testing.T) {
	p := policyOf(t, renderDevice(t), devicePlugin)
	got := map[string][]string{
		"annotations": p.texts(t, "allowedAnnotations"), "conditions": p.texts(t, "allowedConditions"),
		"resources": p.spec.MatchConstraints.ResourceRules[0].Resources,
	}
	want := map[string][]string{
		"annotations": {wellknown.GPUTopology, wellknown.FreeGPUs, wellknown.SharedGPUs, wellknown.HCACounts, wellknown.GPUReleaseStatus,
			wellknown.MetaXScores, wellknown.MetaXLosses, wellknown.HAMiGPUs},
		"conditions": {wellknown.ConditionDevices, wellknown.ConditionModes, wellknown.ConditionRemediation}, "resources": {"nodes", "nodes/status"},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(p.spec.MatchConstraints.ResourceRules) != 1 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
