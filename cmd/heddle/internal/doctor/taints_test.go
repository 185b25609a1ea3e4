package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

func TestTaintsThroughTheAPI(t *testing.T) {
	pods := []corev1.Pod{
		pod("monitoring", "node-exporter-q", owned("DaemonSet", "node-exporter")),
		pod("kube-system", "kube-proxy-z", tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})),
		pod("ml", "done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("kube-system", "etcd-gpu-1", func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}),
	}
	config := serve(t, h20Node(), pods)
	out, err := doctor(t, "taints", "--if", "gpuProduct", "--node", "gpu-1", "--kubeconfig", config)
	want := "With the taint nvidia.com/gpu.product=NVIDIA-H20:NoSchedule on Node gpu-1, these could not come back:\n\n" +
		"NAMESPACE   NAME             OWNER\n" +
		"monitoring  node-exporter-q  DaemonSet/node-exporter\n\n" +
		"What they would need:\n\n" +
		"  tolerations:\n  - {key: nvidia.com/gpu.product, operator: Exists, effect: NoSchedule}\n"
	if diff := cmp.Diff(want, out); diff != "" || !errors.Is(err, cli.ErrFindings) {
		t.Errorf("error %v, output (-want +got):\n%s", err, diff)
	}
	out, err = doctor(t, "taints", "--if", "usage", "--node", "gpu-1", "--kubeconfig", config)
	if want := "Node gpu-1 has no label heddle.dev/node.usage, so usage would set no taint.\n"; out != want || err != nil {
		t.Errorf("error %v, output %q, want %q", err, out, want)
	}
	config = serve(t, h20Node(), pods[1:])
	if out, err = doctor(t, "taints", "--if", "gpuProduct", "--node", "gpu-1", "--kubeconfig", config); err != nil {
		t.Errorf("error %v, output %q", err, out)
	}
}

func TestEffectsOfATaint(t *testing.T) {
	pods := []corev1.Pod{pod("default", "train-0", nil)}
	for effect, want := range map[string]struct {
		text  string
		wrong bool
	}{
		"NoSchedule":       {"these could not come back:", true},
		"NoExecute":        {"these would be evicted at once and could not come back:", true},
		"PreferNoSchedule": {"these could come back, if no other node takes them:", false},
	} {
		t.Run(effect, func(t *testing.T) {
			dir := directory(t, map[string]string{"version": "v1", "cluster-config": "taints: {effect: " + effect + "}"})
			out, err := doctor(t, "taints", "--if", "gpuProduct", "--node", "gpu-1", "--config", dir,
				"--kubeconfig", serve(t, h20Node(), pods))
			if !strings.Contains(out, want.text) || errors.Is(err, cli.ErrFindings) != want.wrong {
				t.Errorf("error %v, output %q", err, out)
			}
		})
	}
}
