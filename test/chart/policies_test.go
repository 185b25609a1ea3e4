package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/claims"
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

// label writes a label as the daemons do, by server-side apply under the daemon's name.
func label(key, value string) func(*nodeWrite) {
	return func(w *nodeWrite) {
		_, manager, _ := strings.Cut(w.user()["username"].(string), ":heddle-system:")
		labelBy(manager, metav1.ManagedFieldsOperationApply, key, value)(w)
	}
}

// labelBy writes a label with the record that the API server makes of it.
func labelBy(manager string, op metav1.ManagedFieldsOperationType, key, value string) func(*nodeWrite) {
	return func(w *nodeWrite) {
		w.new.Labels[key] = value
		w.new.ManagedFields = append(w.new.ManagedFields, managed(manager, op, key))
	}
}

// outlasting are writes of a label that the daemon would not remove.
func outlasting(daemon, key string) []try[corev1.Node] {
	return []try[corev1.Node]{
		{"a label by another patch", labelBy(daemon, metav1.ManagedFieldsOperationUpdate, key, "x")},
		{"a label under another name", labelBy("kubelet", metav1.ManagedFieldsOperationApply, key, "x")},
		{"a label without a record", func(w *nodeWrite) { w.new.Labels[key], w.new.ManagedFields = "x", nil }},
		{"owners merged by the API server", func(w *nodeWrite) { w.new.ManagedFields[0].Manager = "ancient-changes" }},
		{"another owner of a label", func(w *nodeWrite) {
			label(key, "x")(w)
			w.new.ManagedFields[0] = managed("kubelet", metav1.ManagedFieldsOperationUpdate, "kubernetes.io/hostname", "rack", key)
		}},
	}
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
			label("nvidia.com/gpu.product", "x")(w)
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
		{"a finalizer removed", func(w *nodeWrite) { w.old.Finalizers = []string{"a/b"} }},
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
	tries := append(toNode(), outlasting(wellknown.FieldManager, "nvidia.com/gpu.product")...)
	checkPolicy(t, p, wellknown.FieldManager, nodeBy(wellknown.FieldManager), append(tries, []try[corev1.Node]{
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
		{"the taint of a node that rejects pods", taint(wellknown.RejectsPods, corev1.TaintEffectNoSchedule)},
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
		tries := append(toNode(), outlasting(topoMaster, "heddle.dev/topology.spine")...)
		checkPolicy(t, policyOf(t, renderTopo(t, args...), topoMaster), name, nodeBy(topoMaster), append(tries, []try[corev1.Node]{
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
	at := metav1.Now().Rfc3339Copy()
	base := func() *topologyWrite {
		n := &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "n1", OwnerReferences: []metav1.OwnerReference{owner}}}
		return &topologyWrite{old: n.DeepCopy(), new: n, request: updating("n1", topoWorker, "n1")}
	}
	checkPolicy(t, policyOf(t, renderTopo(t), topoWorker), topoWorker, base, append(byToken[v1alpha1.NodeTopology](), []try[v1alpha1.NodeTopology]{
		{"its own", func(*topologyWrite) {}},
		{"its first", func(w *topologyWrite) { w.request["operation"], w.old = "CREATE", nil }},
		{"its heartbeat", func(w *topologyWrite) {
			w.request["subResource"], w.new.Status.HeartbeatTime = "status", &at
		}},
		{"what is known of its cables", func(w *topologyWrite) {
			w.request["subResource"], w.new.Status.Rails, w.new.Status.FindingCount = "status", "8/8", new(int32(0))
		}},
		{"findings removed", func(w *topologyWrite) {
			w.request["subResource"], w.old.Status.Findings = "status", []v1alpha1.Finding{{Kind: "dead", Message: "x"}}
		}},
		{"another node's", func(w *topologyWrite) { w.new.Name, w.new.OwnerReferences[0].Name = "n2", "n2" }},
		{"owned by another Node", func(w *topologyWrite) { w.new.OwnerReferences[0].Name = "n2" }},
		{"owned by two", func(w *topologyWrite) { w.new.OwnerReferences = append(w.new.OwnerReferences, owner) }},
		{"without an owner", func(w *topologyWrite) { w.new.OwnerReferences = nil }},
		{"deleted", func(w *topologyWrite) { w.new, w.request["operation"] = nil, "DELETE" }},
	}...))

	// The master names the worker that discovers a leaf, and cannot forge heartbeats.
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
		{"a new report", func(w *topologyWrite) {
			delete(w.request, "subResource")
			w.request["operation"], w.old = "CREATE", nil
		}},
		{"a report deleted", func(w *topologyWrite) {
			delete(w.request, "subResource")
			w.request["operation"], w.new = "DELETE", nil
		}},
	})
}

// Of ResourceSlices, topo-master writes those of IMEX channels, and a node's daemon its own.
func TestSlicesPolicies(t *testing.T) {
	type sliceWrite = write[resourcev1.ResourceSlice]
	const on = "gpuDevice.claims.enabled=true"
	by := func(daemon string, own resourcev1.ResourceSliceSpec) func() *sliceWrite {
		own.Driver = claims.Driver
		s := &resourcev1.ResourceSlice{Spec: own}
		return func() *sliceWrite {
			return &sliceWrite{
				old: s.DeepCopy(), new: s.DeepCopy(), request: updating("s", daemon, "n1"),
				resource: metav1.GroupResource{Group: resourcev1.GroupName, Resource: "resourceslices"},
			}
		}
	}
	channels := resourcev1.ResourceSliceSpec{
		Pool: resourcev1.ResourcePool{Name: claims.ChannelPool("c.1")}, NodeSelector: &corev1.NodeSelector{},
	}
	node := resourcev1.ResourceSliceSpec{Pool: resourcev1.ResourcePool{Name: "n1"}, NodeName: new("n1")}
	tries := []try[resourcev1.ResourceSlice]{
		{"its own", func(*sliceWrite) {}},
		{"made", func(w *sliceWrite) { w.request["operation"], w.old = "CREATE", nil }},
		{"deleted", func(w *sliceWrite) { w.request["operation"], w.new = "DELETE", nil }},
		{"another driver's", func(w *sliceWrite) { w.new.Spec.Driver = "gpu.nvidia.com" }},
		{"of node n1", func(w *sliceWrite) { w.new.Spec = node; w.new.Spec.Driver = claims.Driver }},
		{"of node n2", func(w *sliceWrite) {
			w.new.Spec = node
			w.new.Spec.Driver, w.new.Spec.NodeName = claims.Driver, new("n2")
		}},
		{"of channels", func(w *sliceWrite) { w.new.Spec = channels; w.new.Spec.Driver = claims.Driver }},
		{"of all nodes", func(w *sliceWrite) {
			w.new.Spec.NodeName, w.new.Spec.NodeSelector, w.new.Spec.AllNodes = nil, nil, new(true)
		}},
		{"another driver's deleted", func(w *sliceWrite) {
			w.request["operation"], w.new, w.old.Spec.Driver = "DELETE", nil, "gpu.nvidia.com"
		}},
	}
	for daemon, p := range map[string]struct {
		own resourcev1.ResourceSliceSpec
		of  rendered
	}{
		topoMaster: {channels, renderTopo(t, "--set", on)}, devicePlugin: {node, renderDevice(t, "--set", on)},
	} {
		checkPolicy(t, policyOf(t, p.of, daemon+"-slices"), daemon+"-slices", by(daemon, p.own), tries)
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
		"annotations": {
			wellknown.GPUTopology, wellknown.FreeGPUs, wellknown.SharedGPUs, wellknown.HCACounts, wellknown.GPUReleaseStatus,
			wellknown.MetaXScores, wellknown.MetaXLosses, wellknown.HAMiGPUs,
		},
		"conditions": {wellknown.ConditionDevices, wellknown.ConditionModes, wellknown.ConditionRemediation, wellknown.ConditionRejects},
		"resources":  {"nodes", "nodes/status"},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(p.spec.MatchConstraints.ResourceRules) != 1 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
