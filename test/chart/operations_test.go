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
	args := []string{"--set", all}
	for _, part := range apart {
		args = append(args, "--set", part+".priorityClassName=own,"+part+".tolerations[0].key=k-"+strings.ReplaceAll(part, ".", "-"),
			"--set-json", part+`.affinity={"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}`)
	}
	found := pods(render(t, args...))
	for id, part := range apart {
		if _, there := found[id]; !there {
			t.Errorf("there is no %s, of %s", id, part)
		}
	}
	for id, pod := range found {
		checkPlacement(t, id, apart[id], &pod.Spec)
	}
	for id, pod := range pods(render(t, "--set", all)) {
		if pod.Spec.PriorityClassName != "system-node-critical" {
			t.Errorf("%s: priority %q", id, pod.Spec.PriorityClassName)
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
	if ends := pod.RestartPolicy == corev1.RestartPolicyNever; !ends && (c.LivenessProbe == nil || c.ReadinessProbe == nil) {
		t.Errorf("%s: probes %v, %v", id, c.LivenessProbe, c.ReadinessProbe)
	}
}

// The pod of helm test goes where the uninstall does, unless it has values of its own.
func TestPlacementOfHelmTest(t *testing.T) {
	pod := get[*corev1.Pod](t, render(t, "--set", "uninstall.nodeSelector.pool=infra,uninstall.tolerations[0].key=infra"), "Pod/heddle-test").Spec
	if pod.NodeSelector["pool"] != "infra" || pod.Tolerations[len(pod.Tolerations)-1].Key != "infra" {
		t.Errorf("node selector %v, tolerations %v", pod.NodeSelector, pod.Tolerations)
	}
}

// The probes of heddle-mps run the program that is in its image, with flags that it has,
// and ask where the keeper serves. The kubelet expands no variables there.
func TestProbesOfMPS(t *testing.T) {
	c := pods(render(t, "--set", everything+",gpuDevice.mps=true"))["DaemonSet/heddle-mps"].Spec.Containers[0]
	want := []string{"/usr/local/bin/heddle-node", "mps", "--check", "--state-dir=/var/lib/heddle/device-plugin"}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		if diff := cmp.Diff(want, p.Exec.Command); diff != "" {
			t.Errorf("command (-want +got):\n%s", diff)
		}
		for _, flag := range p.Exec.Command[2:] {
			name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
			if !flagNames(t, "heddle-mps")[name] {
				t.Errorf("there is no flag %s", flag)
			}
		}
		if !slices.Contains(c.Args, p.Exec.Command[3]) {
			t.Errorf("it asks at %s, the keeper has %v", p.Exec.Command[3], c.Args)
		}
	}
	if l := c.LivenessProbe; l.PeriodSeconds*l.FailureThreshold < 300 {
		t.Errorf("programs end after %d failures, one every %d s", l.FailureThreshold, l.PeriodSeconds)
	}
}

// What a GitOps controller renders again and again must not differ.
func TestRenderingsAreEqual(t *testing.T) {
	args := []string{"template", generated, chartDir, "-n", namespace, "--set", everything, "--set", "monitoring.deploy=true,networkPolicy.deploy=true"}
	first, err := helm(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := helm(t, args...); err != nil || first != again {
		t.Errorf("two renderings differ (%v):\n%s", err, cmp.Diff(first, again))
	}
}

// helm test runs the command that lists the daemons.
func TestHelmTest(t *testing.T) {
	pod := get[*corev1.Pod](t, render(t), "Pod/heddle-test")
	if want := []string{"status", "--namespace=" + namespace}; !slices.Equal(pod.Spec.Containers[0].Args, want) ||
		pod.Annotations["helm.sh/hook"] != "test" {
		t.Errorf("arguments %v, hook %q", pod.Spec.Containers[0].Args, pod.Annotations["helm.sh/hook"])
	}
	if render(t, "--set", "tests.deploy=false")["Pod/heddle-test"] != nil {
		t.Error("it is there although it is off")
	}
}
