package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const combined = "combined=true,topoDiscovery.deploy=true,topoDiscovery.worker.mKeySecret=keys"

// One process in place of three: one DaemonSet and one account, which has the rights of
// each daemon, and policies that hold for it.
func TestCombined(t *testing.T) {
	apart := render(t, "--set", "topoDiscovery.deploy=true,topoDiscovery.worker.mKeySecret=keys", "--no-hooks")
	objects := render(t, "--set", combined, "--no-hooks")
	var gone, came []string
	for _, name := range slices.Sorted(maps.Keys(apart)) {
		if objects[name] == nil {
			gone = append(gone, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		if apart[name] == nil {
			came = append(came, name)
		}
	}
	if diff := cmp.Diff([]string{
		"DaemonSet/heddle-device-plugin", "DaemonSet/heddle-feature-discovery", "DaemonSet/heddle-topo-worker",
		"ServiceAccount/heddle-device-plugin", "ServiceAccount/heddle-feature-discovery", "ServiceAccount/heddle-topo-worker",
		"ValidatingAdmissionPolicy/heddle-device-plugin", "ValidatingAdmissionPolicy/heddle-feature-discovery",
		"ValidatingAdmissionPolicyBinding/heddle-device-plugin", "ValidatingAdmissionPolicyBinding/heddle-feature-discovery",
	}, gone); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"DaemonSet/heddle-node", "ServiceAccount/heddle-node",
		"ValidatingAdmissionPolicy/heddle-node", "ValidatingAdmissionPolicyBinding/heddle-node",
	}, came); diff != "" {
		t.Errorf("new (-want +got):\n%s", diff)
	}
	for _, role := range []string{"heddle-device-plugin", "heddle-feature-discovery", "heddle-topo-worker"} {
		b := get[*rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding/"+role)
		if len(b.Subjects) != 1 || b.Subjects[0].Name != "heddle-node" {
			t.Errorf("%s is bound to %v", role, b.Subjects)
		}
	}
	pod := get[*appsv1.DaemonSet](t, objects, "DaemonSet/heddle-node").Spec.Template.Spec
	at := func(part string) int { return slices.Index(pod.Containers[0].Args, part) }
	plugin, discovery, worker := at("device-plugin"), at("feature-discovery"), at("topo-worker")
	if plugin < 0 || plugin > discovery || discovery > worker {
		t.Fatalf("arguments %q", pod.Containers[0].Args)
	}
	args := pod.Containers[0].Args
	checkArgs(t, "heddle-node", args[:plugin])
	checkArgs(t, "heddle-device-plugin", args[plugin+1:discovery])
	checkArgs(t, "heddle-feature-discovery", args[discovery+1:worker])
	checkArgs(t, "heddle-topo-worker", args[worker+1:])
	// Each daemon has the mounts and flags that it has alone; what they have in common is
	// before them.
	for _, name := range []string{"heddle-device-plugin", "heddle-feature-discovery", "heddle-topo-worker"} {
		alone := get[*appsv1.DaemonSet](t, apart, "DaemonSet/"+name).Spec.Template.Spec
		for _, m := range alone.Containers[0].VolumeMounts {
			if !slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(o corev1.VolumeMount) bool { return cmp.Equal(m, o) }) {
				t.Errorf("no mount %+v of %s", m, name)
			}
		}
		for _, arg := range alone.Containers[0].Args {
			if !slices.Contains(args, arg) && !strings.HasPrefix(arg, "--metrics-address=") {
				t.Errorf("no argument %s of %s", arg, name)
			}
		}
	}
	policies := map[string]string{
		"heddle-node": "heddle-node", "heddle-device-plugin-pods": "heddle-node", "heddle-device-plugin-events": "heddle-node",
		"heddle-topo-worker": "heddle-node",
	}
	for name, account := range policies {
		policy := get[*admissionv1.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy/"+name)
		if text := policy.Spec.MatchConditions[0].Expression; !strings.Contains(text, ":"+account+"'") {
			t.Errorf("policy %s is for %s", name, text)
		}
	}
}

func TestCombinedTakesTheDevicePlugin(t *testing.T) {
	_, err := helm(t, "template", generated, chartDir, "-n", namespace, "--set", "localImages=true,combined=true,gpuDevice.deploy=false")
	if err == nil || !strings.Contains(err.Error(), "set gpuDevice.deploy, or combined=false") {
		t.Errorf("got %v", err)
	}
}

// heddle-node may change of its own Node what its daemons may, and no more.
func TestCombinedPolicy(t *testing.T) {
	p := policyOf(t, render(t, "--set", combined), "heddle-node")
	for _, tt := range []struct {
		name string
		do   func(*attempt)
		deny []string
	}{
		{name: "a label", do: func(a *attempt) { a.new.Labels["nvidia.com/gpu.product"] = "NVIDIA-H20" }},
		{name: "annotations of both", do: func(a *attempt) {
			a.new.Annotations[wellknown.OwnedTaints], a.new.Annotations[wellknown.GPUTopology] = "[]", "{}"
		}},
		{name: "a taint", do: func(a *attempt) {
			a.new.Spec.Taints = append(a.new.Spec.Taints, corev1.Taint{Key: "nvidia.com/gpu.product", Effect: corev1.TaintEffectNoSchedule})
		}},
		{name: "its condition", do: func(a *attempt) {
			a.request["subResource"] = "status"
			a.new.Status.Conditions[0].Status = corev1.ConditionFalse
		}},
		{
			name: "another label", do: func(a *attempt) { a.new.Labels["kubernetes.io/hostname"] = "n2" },
			deny: []string{"heddle-node may not change labels kubernetes.io/hostname; the key of a label rule must be in the " +
				"chart's config.cluster.labels, config.nodes or admissionPolicy.extraLabelKeys"},
		},
		{
			name: "what an operator writes", do: func(a *attempt) { a.new.Annotations[wellknown.CordonedGPUs] = "GPU-a" },
			deny: []string{"heddle-node may not change annotations " + wellknown.CordonedGPUs},
		},
		{
			name: "the kubelet's condition", do: func(a *attempt) {
				a.request["subResource"] = "status"
				a.new.Status.Conditions[1].Status = corev1.ConditionFalse
			},
			deny: []string{"heddle-node may not change conditions Ready"},
		},
		{
			name: "capacity", do: func(a *attempt) { a.request["subResource"] = "status"; a.new.Status.Capacity = nil },
			deny: []string{"heddle-node may not change status.capacity"},
		},
		{
			name: "another Node", do: func(a *attempt) { a.user()["extra"] = map[string]any{nodeNameKey: []string{"n2"}} },
			deny: []string{"heddle-node may write only the Node that its pod runs on, by the pod's own token"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := deviceAttempt()
			a.user()["username"] = "system:serviceaccount:heddle-system:heddle-node"
			tt.do(a)
			if !p.matches(t, a) {
				t.Fatal("the policy does not match")
			}
			if diff := cmp.Diff(tt.deny, p.denials(t, a)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
		})
	}
}
