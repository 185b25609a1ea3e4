package doctor

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

const waits = "\nnote  Node gpu-1\n  GPU 3: native until ml/train ends, then sgpu\n"

func TestGPUsOfTheDevicePlugin(t *testing.T) {
	reports := report.Report{
		Node: "gpu-1",
		GPUs: []report.GPU{
			{Index: 2, UUID: "GPU-c", Mode: "sgpu", Wanted: "sgpu", Cordoned: true},
			{Index: 3, UUID: "GPU-d", Mode: "native", Wanted: "sgpu", Until: "ml/train ends"},
			{Index: 4, UUID: "GPU-e", Wanted: "sgpu", Until: "it is known who holds it"},
		},
		UnknownCordoned: []string{"GPU-x"},
	}
	out, err := doctor(t, "--machine", machines+"dgx-h100.json", "--device-plugin", answering(t, reports))
	if err != nil {
		t.Errorf("notes are no problems: %v", err)
	}
	for _, want := range []string{
		waits,
		"\nnote  Node gpu-1\n  GPU 4: not allocated until it is known who holds it, then sgpu\n",
		"\nnote  Node gpu-1\n  GPU GPU-c is cordoned: no new pod gets it\n  -> heddle gpu uncordon gpu-1 GPU-c\n",
		"\nnote  Node gpu-1\n  GPU GPU-x is cordoned and not on this node\n  -> heddle gpu uncordon gpu-1 GPU-x\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestGPUsOfTheNode(t *testing.T) {
	n := h20Node()
	n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	n.Annotations = map[string]string{wellknown.CordonedGPUs: "GPU-c,no UUID"}
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: wellknown.ConditionModes, Status: corev1.ConditionTrue, Reason: "ModePending",
		Message: "GPU 3: native until ml/train ends, then sgpu; GPU 5: sgpu until ml/a and ml/b end, then native",
	}}
	out, _ := doctor(t, "--node", "gpu-1", "--kubeconfig", serve(t, n, nil))
	for _, want := range []string{
		waits,
		"\nnote  Node gpu-1\n  GPU 5: sgpu until ml/a and ml/b end, then native\n",
		"\nnote  Node gpu-1\n  GPU GPU-c is cordoned: no new pod gets it\n  -> heddle gpu uncordon gpu-1 GPU-c\n",
		"\nproblem  Node gpu-1\n  heddle.dev/cordoned-gpus: invalid GPU UUID \"no UUID\"\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	n.Status.Conditions[0].Status = corev1.ConditionFalse
	n.Annotations = nil
	if out, _ := doctor(t, "--node", "gpu-1", "--kubeconfig", serve(t, n, nil)); strings.Contains(out, "GPU 3") {
		t.Errorf("reports a condition that no longer holds:\n%s", out)
	}
	// What both report is shown once.
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	reports := report.Report{Node: "gpu-1", GPUs: []report.GPU{
		{Index: 3, UUID: "GPU-d", Mode: "native", Wanted: "sgpu", Until: "ml/train ends"},
	}}
	out, _ = doctor(t, "--machine", machines+"dgx-h100.json", "--node", "gpu-1", "--kubeconfig", serve(t, n, nil), "--device-plugin", answering(t, reports))
	if strings.Count(out, waits) != 1 {
		t.Errorf("shown %d times:\n%s", strings.Count(out, waits), out)
	}
}
