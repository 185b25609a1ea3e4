package uninstall

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

func quantities(q map[corev1.ResourceName]int64) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, n := range q {
		list[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return list
}

func served() []string { return []string{"nvidia.com/gpu", "nvidia.com/mig-*", "nvidia.com/sgpu"} }

func conditions(types ...corev1.NodeConditionType) (all []corev1.NodeCondition) {
	for _, t := range types {
		all = append(all, corev1.NodeCondition{Type: t})
	}
	return all
}

func TestLeftInNode(t *testing.T) {
	for _, tt := range []struct {
		name string
		node corev1.Node
		want leftIn
	}{
		{
			"nothing of heddle",
			corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"example.com/a": "1", "metax-tech.com/node-gpu-devices": "[]"}},
				Status:     corev1.NodeStatus{Conditions: conditions("Ready")},
			},
			leftIn{annotations: map[string]any{}},
		},
		{
			"annotations, conditions and resources of the device plugin",
			corev1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Annotations: map[string]string{"heddle.dev/free-gpus": "[]", "heddle.dev/cordoned-gpus": "GPU-1", "example.com/a": "1"},
					ManagedFields: []metav1.ManagedFieldsEntry{{
						Manager: devicePlugin, Operation: metav1.ManagedFieldsOperationUpdate,
						FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:metax-tech.com/node-gpu-devices":{},"f:metax-tech.com/gpu.topology.losses":{}}}}`),
					}},
				},
				Status: corev1.NodeStatus{Conditions: conditions("Ready", "HeddleReady")},
			},
			leftIn{
				annotations: map[string]any{
					"heddle.dev/free-gpus": nil, "heddle.dev/cordoned-gpus": nil, "metax-tech.com/node-gpu-devices": nil,
					"metax-tech.com/gpu.topology.losses": nil,
				},
				conditions: []map[string]string{{"type": "HeddleReady", "$patch": "delete"}},
			},
		},
		{
			"a node of the map alone, whose GPUs another plugin serves",
			corev1.Node{
				ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
					{Manager: topoMaster, Operation: metav1.ManagedFieldsOperationApply},
				}},
				Status: corev1.NodeStatus{Conditions: conditions("HeddleFabric")},
			},
			leftIn{
				annotations: map[string]any{},
				conditions:  []map[string]string{{"type": "HeddleFabric", "$patch": "delete"}},
				topology:    true,
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := leftInNode(&tt.node)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(leftIn{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHolds(t *testing.T) {
	asks := func(name corev1.ResourceName) corev1.PodSpec {
		limits := quantities(map[corev1.ResourceName]int64{name: 1})
		return corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits}}}}
	}
	bound := metav1.ObjectMeta{Annotations: map[string]string{"heddle.dev/sgpu-bound": "{}"}}
	for _, tt := range []struct {
		name string
		pod  corev1.Pod
		want bool
	}{
		{"a share", corev1.Pod{ObjectMeta: bound}, true},
		{"a share that is over", corev1.Pod{ObjectMeta: bound, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, false},
		{"a GPU", corev1.Pod{Spec: asks("nvidia.com/gpu")}, true},
		{"a GPU instance", corev1.Pod{Spec: asks("nvidia.com/mig-1g.10gb")}, true},
		{"another's device", corev1.Pod{Spec: asks("x.com/nic")}, false},
	} {
		if got := holds(&tt.pod, served()); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

// The cleaning pods have what they remove below a mount, since no process removes a
// mount point, and nothing of the driver or of the configuration.
func TestCleaner(t *testing.T) {
	hostPath := func(name, path string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
	}
	plugin := &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{
			hostPath("cdi", "/var/run/cdi"), hostPath("state", "/var/lib/heddle/device-plugin"),
			hostPath("mps-shm", "/dev/shm/heddle-mps"), hostPath("dev", "/dev"),
		},
		Containers: []corev1.Container{{
			Name: devicePlugin, Args: []string{"device-plugin", "--cdi-dir=/var/run/cdi", "--state-dir=/var/lib/heddle/device-plugin", "--mps"},
			VolumeMounts: []corev1.VolumeMount{{Name: "cdi", MountPath: "/var/run/cdi"}, {Name: "dev", MountPath: "/dev"}},
		}},
	}}}}
	got, err := cleaner(plugin)
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]any{"$patch": "replace"}
	volume := func(name, path string) any {
		return map[string]any{"name": name, "hostPath": map[string]any{"path": path}}
	}
	mount := func(name, path string) any { return map[string]any{"name": name, "mountPath": path} }
	want := map[string]any{"spec": map[string]any{
		"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"maxSurge": 0, "maxUnavailable": "100%"}},
		"template": map[string]any{"spec": map[string]any{
			"volumes": []any{
				replace, &plugin.Spec.Template.Spec.Volumes[0], volume("state", "/var/lib"), volume("mps-shm", "/dev/shm"),
			},
			"containers": []any{map[string]any{
				"name": devicePlugin,
				"args": []string{
					"device-plugin", "--cleanup", "--cdi-dir=/var/run/cdi", "--state-dir=/remove/state/heddle/device-plugin",
					"--mps-shm-dir=/remove/mps-shm/heddle-mps",
				},
				"volumeMounts": []any{
					replace, mount("state", "/remove/state"), mount("mps-shm", "/remove/mps-shm"),
					&plugin.Spec.Template.Spec.Containers[0].VolumeMounts[0],
				},
			}},
			"initContainers": nil,
		}},
	}}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// As the API server applies it: a mount of an init container would name a volume that is gone.
	plugin.Spec.Template.Spec.InitContainers = []corev1.Container{{
		Name: "preload", VolumeMounts: []corev1.VolumeMount{{Name: "library", MountPath: "/library"}},
	}}
	before, beforeErr := json.Marshal(plugin)
	patch, patchErr := json.Marshal(got)
	after, err := strategicpatch.StrategicMergePatch(before, patch, appsv1.DaemonSet{})
	var patched appsv1.DaemonSet
	if err = errors.Join(beforeErr, patchErr, err, json.Unmarshal(after, &patched)); err != nil {
		t.Fatal(err)
	}
	if spec := patched.Spec.Template.Spec; len(spec.InitContainers) != 0 || len(spec.Volumes) != 3 {
		t.Errorf("init containers %v, volumes %v", spec.InitContainers, spec.Volumes)
	}
}
