package chart

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// pods are the pod templates of a rendering, by name.
func pods(objects rendered) map[string]corev1.PodTemplateSpec {
	all := map[string]corev1.PodTemplateSpec{}
	for id, object := range objects {
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			all[id] = o.Spec.Template
		case *appsv1.Deployment:
			all[id] = o.Spec.Template
		case *batchv1.Job:
			all[id] = o.Spec.Template
		case *corev1.Pod:
			all[id] = corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
		}
	}
	return all
}

// NetworkPolicies select the pods that are there, and let in what they listen on.
func TestNetworkPolicies(t *testing.T) {
	objects := render(t, "--set", everything, "--set", "networkPolicy.deploy=true",
		"--set-json", `networkPolicy.topoMasterFrom=[{"podSelector":{"matchLabels":{"app":"x"}}}]`)
	for name, want := range map[string][]string{"heddle-topo-master": {"api", "probes"}, "heddle-scheduler": {"https"}} {
		policy := get[*networkingv1.NetworkPolicy](t, objects, "NetworkPolicy/"+name)
		pod := pods(objects)["Deployment/"+name]
		for key, value := range policy.Spec.PodSelector.MatchLabels {
			if pod.Labels[key] != value {
				t.Errorf("%s selects %s=%s, its pods have %v", name, key, value, pod.Labels)
			}
		}
		var got, declared []string
		for _, rule := range policy.Spec.Ingress {
			got = append(got, rule.Ports[0].Port.StrVal)
			if peers := len(rule.From); peers != 0 != (rule.Ports[0].Port.StrVal == "api") {
				t.Errorf("%s, port %s: %d peers", name, rule.Ports[0].Port.StrVal, peers)
			}
		}
		for _, p := range pod.Spec.Containers[0].Ports {
			declared = append(declared, p.Name)
		}
		if !slices.Equal(got, want) || !slices.Equal(declared, want) {
			t.Errorf("%s lets in %v, the pods declare %v, want %v", name, got, declared, want)
		}
	}
	if policy := get[*networkingv1.NetworkPolicy](t, objects, "NetworkPolicy/heddle-uninstall"); len(policy.Spec.Ingress) > 0 {
		t.Errorf("the uninstall listens on nothing: %v", policy.Spec.Ingress)
	}
}

// heddle-scheduler may ask topo-master for the map, also where the values name others alone.
func TestSchedulerReachesTopoMaster(t *testing.T) {
	for _, tt := range []struct {
		name, from string
		scheduler  bool
		want       []map[string]string
	}{
		{"all may", "[]", true, nil},
		{"beside others", `[{"podSelector":{"matchLabels":{"app":"x"}}}]`, true, []map[string]string{{"app": "x"}, {"app.kubernetes.io/name": "heddle-scheduler"}}},
		{"not deployed", `[{"podSelector":{"matchLabels":{"app":"x"}}}]`, false, []map[string]string{{"app": "x"}}},
	} {
		objects := render(t, "--set", everything, "--set", "networkPolicy.deploy=true,gpuScheduler.deploy="+strconv.FormatBool(tt.scheduler),
			"--set-json", "networkPolicy.topoMasterFrom="+tt.from)
		var got []map[string]string
		for _, peer := range get[*networkingv1.NetworkPolicy](t, objects, "NetworkPolicy/heddle-topo-master").Spec.Ingress[0].From {
			got = append(got, peer.PodSelector.MatchLabels)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if pod, there := pods(objects)["Deployment/heddle-scheduler"]; there && pod.Labels["app.kubernetes.io/name"] != "heddle-scheduler" {
			t.Errorf("%s: its pods have %v", tt.name, pod.Labels)
		}
	}
}

// A budget for one replica would keep a drain waiting for ever.
func TestPodDisruptionBudgets(t *testing.T) {
	budgets := func(args ...string) (names []string) {
		for id, object := range render(t, append([]string{"--set", everything}, args...)...) {
			if b, ok := object.(*policyv1.PodDisruptionBudget); ok {
				names = append(names, b.Name)
				if b.Spec.MaxUnavailable.IntVal != 1 || b.Spec.Selector.MatchLabels["app.kubernetes.io/name"] != b.Name {
					t.Errorf("%s: %+v", id, b.Spec)
				}
			}
		}
		slices.Sort(names)
		return names
	}
	for set, want := range map[string][]string{
		"tag=v1":                  {"heddle-scheduler", "heddle-topo-master"},
		"gpuScheduler.replicas=1": {"heddle-topo-master"},
		"topoDiscovery.master.podDisruptionBudget=false": {"heddle-scheduler"},
	} {
		if diff := cmp.Diff(want, budgets("--set", set)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", set, diff)
		}
	}
}

// Every part takes a priority class, tolerations and an affinity of its own, and what does
// not end has probes.
func TestPlacementOfEveryPart(t *testing.T) {
	apart := map[string]string{
		"DaemonSet/heddle-feature-discovery": "gpuLabel", "DaemonSet/heddle-device-plugin": "gpuDevice", "DaemonSet/heddle-mps": "gpuDevice",
		"DaemonSet/heddle-topo-worker": "topoDiscovery.worker", "Deployment/heddle-topo-master": "topoDiscovery.master",
		"Deployment/heddle-scheduler": "gpuScheduler",
		"Job/heddle-uninstall-nodes":  "uninstall", "Job/heddle-uninstall-capacity": "uninstall", "Pod/heddle-test": "tests",
	}
	const all = everything + ",gpuDevice.mps=true"
	for name, tt := range map[string]struct {
		set   string
		parts map[string]string
	}{
		"apart": {all, apart},
		"combined": {all + ",combined=true,gpuLabel.deploy=false,topoDiscovery.deploy=false", map[string]string{
			"DaemonSet/heddle-node": "gpuDevice", "DaemonSet/heddle-mps": "gpuDevice", "Deployment/heddle-scheduler": "gpuScheduler",
			"Job/heddle-uninstall-nodes": "uninstall", "Job/heddle-uninstall-capacity": "uninstall", "Pod/heddle-test": "tests",
		}},
	} {
		args := []string{"--set", tt.set}
		for _, part := range tt.parts {
			args = append(args, "--set", part+".priorityClassName=own,"+part+".tolerations[0].key=k-"+strings.ReplaceAll(part, ".", "-"),
				"--set-json", part+`.affinity={"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}`)
		}
		found := pods(render(t, args...))
		for id, part := range tt.parts {
			if _, there := found[id]; !there {
				t.Errorf("%s: there is no %s, of %s", name, id, part)
			}
		}
		for id, pod := range found {
			checkPlacement(t, name+": "+id, tt.parts[id], &pod.Spec)
		}
		for id, pod := range pods(render(t, "--set", tt.set)) {
			if pod.Spec.PriorityClassName != "system-node-critical" {
				t.Errorf("%s: %s: priority %q", name, id, pod.Spec.PriorityClassName)
			}
		}
	}
}

func checkPlacement(t *testing.T, id, part string, pod *corev1.PodSpec) {
	t.Helper()
	tolerates := slices.ContainsFunc(pod.Tolerations, func(s corev1.Toleration) bool {
		return s.Key == "k-"+strings.ReplaceAll(part, ".", "-")
	})
	if part == "" || pod.PriorityClassName != "own" || !tolerates || pod.Affinity == nil || pod.Affinity.NodeAffinity == nil {
		t.Errorf("%s: priority %q, tolerations %v, affinity %v", id, pod.PriorityClassName, pod.Tolerations, pod.Affinity)
	}
	c := pod.Containers[0]
	// A probe of heddle-mps that fails would end CUDA programs.
	if ends := pod.RestartPolicy == corev1.RestartPolicyNever || c.Name == "heddle-mps"; !ends && (c.LivenessProbe == nil || c.ReadinessProbe == nil) {
		t.Errorf("%s: probes %v, %v", id, c.LivenessProbe, c.ReadinessProbe)
	}
}
