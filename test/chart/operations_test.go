package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
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

// Every part takes tolerations and an affinity of its own and the chart's priority class, and
// what does not end has probes.
func TestPlacementOfEveryPart(t *testing.T) {
	apart := map[string]string{
		"DaemonSet/heddle-feature-discovery": "gpuLabel", "DaemonSet/heddle-device-plugin": "gpuDevice", "DaemonSet/heddle-mps": "gpuDevice",
		"DaemonSet/heddle-topo-worker": "topoDiscovery.worker", "Deployment/heddle-topo-master": "topoDiscovery.master",
		"Deployment/heddle-scheduler": "gpuScheduler",
		"Job/heddle-uninstall":        "uninstall", "Pod/heddle-test": "uninstall",
	}
	const all = everything + ",gpuDevice.mps=true"
	args := []string{"--set", all + ",priorityClassName=own"}
	for _, part := range apart {
		args = append(args, "--set", part+".tolerations[0].key=k-"+strings.ReplaceAll(part, ".", "-"),
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

// An uninstall may stop every daemon that the chart can start.
func TestUninstallMayStopAll(t *testing.T) {
	all := render(t, "--set", everything, "--set", "gpuDevice.mps=true")
	rule := get[*rbacv1.Role](t, all, "Role/heddle-uninstall").Rules[0]
	for id, pod := range pods(all) {
		if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			continue // It ends by itself.
		}
		if _, name, _ := strings.Cut(id, "/"); !slices.Contains(rule.ResourceNames, name) {
			t.Errorf("%s is not among %v", id, rule.ResourceNames)
		}
	}
}
