package chart

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// With the preset, the daemons with a session leave a node while gpu-operator has
// paused them; they need none of its labels. The question is the one that the
// DaemonSet controller asks.
func TestGPUOperatorPreset(t *testing.T) {
	objects := renderDevice(t, "-f", chartDir+"/presets/gpu-operator.yaml")
	for name, key := range map[string]string{
		devicePlugin:               "nvidia.com/gpu.deploy.device-plugin",
		"heddle-feature-discovery": "nvidia.com/gpu.deploy.gpu-feature-discovery",
	} {
		pod := &corev1.Pod{Spec: get[*appsv1.DaemonSet](t, objects, "DaemonSet/"+name).Spec.Template.Spec}
		wants := nodeaffinity.GetRequiredNodeAffinity(pod)
		for _, tt := range []struct {
			labels map[string]string
			runs   bool
		}{
			{map[string]string{}, true},
			{map[string]string{key: "true"}, true},
			{map[string]string{key: "false"}, true},
			{map[string]string{key: "paused-for-driver-upgrade"}, false},
			{map[string]string{key: "paused-for-mig-change"}, false},
			{map[string]string{key: "paused-for-mig-change_paused-for-driver-upgrade"}, false},
			// Another operand of gpu-operator is paused.
			{map[string]string{"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}, true},
		} {
			tt.labels["kubernetes.io/os"] = "linux"
			runs, err := wants.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: tt.labels}})
			if err != nil || runs != tt.runs {
				t.Errorf("%s on a node with %v: %t, %v, want %t", name, tt.labels, runs, err, tt.runs)
			}
		}
	}
}
