package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
)

// deviceAttempt is a write to the Node n1 by the device plugin's token on n1.
func deviceAttempt() *attempt {
	a := &attempt{old: node(), new: node(), request: updating("n1", devicePlugin, "n1")}
	for _, n := range []*corev1.Node{a.old, a.new} {
		n.Status = corev1.NodeStatus{
			Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			Conditions: []corev1.NodeCondition{
				{Type: wellknown.ConditionDevices, Status: corev1.ConditionTrue, Reason: health.ConditionReady},
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
			},
			Images: []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 7}},
		}
		n.Annotations[wellknown.GPUTopology] = "{}"
	}
	return a
}

func TestDevicePolicy(t *testing.T) {
	const (
		ownNode = "heddle-device-plugin may write only the Node that its pod runs on, by the pod's own token"
		noLife  = "heddle-device-plugin may neither create nor delete a Node"
	)
	status := func(do func(*corev1.NodeStatus)) func(*attempt) {
		return func(a *attempt) {
			a.request["subResource"] = "status"
			do(&a.new.Status)
		}
	}
	fields := func(words string) []string { return []string{"heddle-device-plugin may not change " + words} }
	for _, tt := range []struct {
		name string
		do   func(*attempt)
		deny []string
	}{
		{name: "nothing", do: func(*attempt) {}},
		{name: "the annotation", do: func(a *attempt) { a.new.Annotations[wellknown.GPUTopology] = `{"1":{}}` }},
		{name: "the annotation for the first time", do: func(a *attempt) { delete(a.old.Annotations, wellknown.GPUTopology) }},
		{name: "the annotation removed", do: func(a *attempt) { delete(a.new.Annotations, wellknown.GPUTopology) }},
		{name: "shared cards", do: func(a *attempt) { a.new.Annotations[wellknown.SharedGPUs] = `{"version":1}` }},
		{name: "shared cards taken away", do: func(a *attempt) { a.old.Annotations[wellknown.SharedGPUs] = `{"version":1}` }},
		{
			name: "other annotations", do: func(a *attempt) {
				a.new.Annotations[wellknown.OwnedTaints] = "[]"
				delete(a.new.Annotations, "node.alpha.kubernetes.io/ttl")
			},
			deny: fields("annotations heddle.dev/owned-taints, node.alpha.kubernetes.io/ttl"),
		},
		{
			name: "a card that an operator took out", do: func(a *attempt) {
				a.old.Annotations[wellknown.CordonedGPUs] = "GPU-a,GPU-b"
				a.new.Annotations[wellknown.CordonedGPUs] = "GPU-a"
			},
			deny: fields("annotations heddle.dev/cordoned-gpus"),
		},
		{
			name: "a card that it takes out itself", do: func(a *attempt) { a.new.Annotations[wellknown.CordonedGPUs] = "GPU-a" },
			deny: fields("annotations heddle.dev/cordoned-gpus"),
		},
		{
			name: "a release that it asks for itself", do: func(a *attempt) {
				a.new.Annotations[wellknown.GPURelease] = `{"until":"2026-11-22T23:30:00Z"}`
			},
			deny: fields("annotations heddle.dev/gpu-release"),
		},
		{name: "the condition of modes", do: status(func(s *corev1.NodeStatus) {
			s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: wellknown.ConditionModes, Status: corev1.ConditionTrue})
		})},
		{name: "the condition", do: status(func(s *corev1.NodeStatus) {
			s.Conditions[0].Status, s.Conditions[0].Message = corev1.ConditionFalse, "GPU 3: lost"
		})},
		{name: "the condition for the first time, at the end", do: func(a *attempt) {
			a.request["subResource"] = "status"
			a.old.Status.Conditions = a.old.Status.Conditions[1:]
			c := a.new.Status.Conditions
			a.new.Status.Conditions = append(slices.Clone(c[1:]), c[0])
		}},
		{name: "the condition removed", do: status(func(s *corev1.NodeStatus) { s.Conditions = s.Conditions[1:] })},
		{name: "the first condition of all", do: func(a *attempt) {
			a.request["subResource"] = "status"
			a.old.Status, a.new.Status = corev1.NodeStatus{}, corev1.NodeStatus{Conditions: a.new.Status.Conditions[:1]}
		}},
		{
			name: "the kubelet's condition", do: status(func(s *corev1.NodeStatus) { s.Conditions[1].Status = corev1.ConditionFalse }),
			deny: fields("conditions Ready"),
		},
		{
			name: "the kubelet's condition removed", do: status(func(s *corev1.NodeStatus) { s.Conditions = s.Conditions[:2] }),
			deny: fields("conditions DiskPressure"),
		},
		{
			name: "a second one of the kubelet's condition", do: status(func(s *corev1.NodeStatus) {
				s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse})
			}),
			deny: fields("conditions Ready"),
		},
		{
			name: "a new condition", do: status(func(s *corev1.NodeStatus) {
				s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: "GPUReady", Status: corev1.ConditionTrue})
			}),
			deny: fields("conditions GPUReady"),
		},
		{
			name: "all conditions removed", do: status(func(s *corev1.NodeStatus) { s.Conditions = nil }),
			deny: fields("conditions Ready, DiskPressure"),
		},
		{
			name: "capacity", do: status(func(s *corev1.NodeStatus) {
				s.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("9")}
			}),
			deny: fields("status.capacity"),
		},
		{
			name: "an address", do: status(func(s *corev1.NodeStatus) {
				s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
			}),
			deny: fields("status.addresses"),
		},
		{name: "images removed", do: status(func(s *corev1.NodeStatus) { s.Images = nil }), deny: fields("status.images")},
		{
			name: "a label", do: func(a *attempt) { a.new.Labels["nvidia.com/gpu.product"] = "x" },
			deny: fields("metadata.labels"),
		},
		{
			name: "a label by the status", do: func(a *attempt) {
				a.request["subResource"] = "status"
				a.new.Labels["nvidia.com/gpu.product"] = "x"
			},
			deny: fields("metadata.labels"),
		},
		{
			name: "an annotation by the status", do: func(a *attempt) {
				a.request["subResource"] = "status"
				a.new.Annotations["example.com/x"] = "y"
			},
			deny: fields("annotations example.com/x"),
		},
		{name: "another's taint removed", do: func(a *attempt) { a.new.Spec.Taints = nil }, deny: fields("taints node.kubernetes.io/unreachable")},
		{
			name: "the taint of remediation, which is off", do: func(a *attempt) { a.new.Spec.Taints = append(a.new.Spec.Taints, unhealthyGPU()) },
			deny: fields("taints heddle.dev/gpu-unhealthy"),
		},
		{
			name: "the taint of remediation removed, which was on",
			do:   func(a *attempt) { a.old.Spec.Taints = append(a.old.Spec.Taints, unhealthyGPU()) },
		},
		{name: "cordoned", do: func(a *attempt) { a.new.Spec.Unschedulable = true }, deny: fields("spec.unschedulable")},
		{name: "a finalizer", do: func(a *attempt) { a.new.Finalizers = []string{"a/b"} }, deny: fields("metadata.finalizers")},
		{name: "what the API server writes", do: func(a *attempt) {
			a.new.ResourceVersion, a.new.Generation, a.new.ManagedFields = "8", 2, nil
		}},
		{
			name: "another subresource", do: func(a *attempt) { a.request["subResource"] = "proxy" },
			deny: []string{noLife},
		},
		{name: "another Node", do: func(a *attempt) { a.request["name"] = "n2" }, deny: []string{ownNode}},
		{name: "a token without a node", do: func(a *attempt) { a.user()["extra"] = map[string]any{} }, deny: []string{ownNode}},
		{name: "a token without anything", do: func(a *attempt) { delete(a.user(), "extra") }, deny: []string{ownNode}},
		{
			name: "a token with two nodes", do: func(a *attempt) {
				a.user()["extra"] = map[string]any{nodeNameKey: []string{"n1", "n2"}}
			},
			deny: []string{ownNode},
		},
		{
			name: "a new Node", do: func(a *attempt) { a.request["operation"], a.old, a.new = "CREATE", nil, &corev1.Node{} },
			deny: []string{noLife},
		},
		{
			name: "a Node deleted", do: func(a *attempt) { a.request["operation"], a.old, a.new = "DELETE", &corev1.Node{}, nil },
			deny: []string{noLife},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := deviceAttempt()
			tt.do(a)
			p := policyOf(t, renderDevice(t), devicePlugin)
			if !p.matches(t, a) {
				t.Fatal("the policy does not look at the request")
			}
			if diff := cmp.Diff(tt.deny, p.denials(t, a)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
			for _, other := range []string{"system:node:n1", "system:serviceaccount:heddle-system:heddle-feature-discovery"} {
				a.user()["username"] = other
				if p.matches(t, a) {
					t.Errorf("the policy looks at requests of %s", other)
				}
			}
		})
	}
}

func unhealthyGPU() corev1.Taint {
	return corev1.Taint{Key: wellknown.UnhealthyGPU, Effect: corev1.TaintEffectNoSchedule}
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
		"annotations": {wellknown.GPUTopology, wellknown.FreeGPUs, wellknown.SharedGPUs, wellknown.HCACounts, wellknown.GPUReleaseStatus},
		"conditions":  {wellknown.ConditionDevices, wellknown.ConditionModes, wellknown.ConditionRemediation}, "resources": {"nodes", "nodes/status"},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(p.spec.MatchConstraints.ResourceRules) != 1 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
