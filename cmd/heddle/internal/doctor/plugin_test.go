package doctor

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/golden"
)

// answering is a device plugin; it returns its address.
func answering(t *testing.T, answer any) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+report.Path, func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func docReport() report.Report {
	return report.Report{
		Node: "gpu-1",
		Resources: []report.Resource{
			{Name: "nvidia.com/gpu", Registered: true, Capacity: 8, Allocatable: 7, Reason: "GPU-b3bea0df-089e-40d8-8ee0-80c789de9e83: lost: memory: GPU is lost"},
			{Name: "rdma/hca_shared_devices_ib", Registered: true, Capacity: 448, Allocatable: 384, Reason: "mlx5_3: port 1 is DOWN"},
		},
		Bindings: []report.Binding{{
			Namespace: "ml", Pod: "train-0", Container: "worker", Class: "PIX", HCAs: []string{"mlx5_0", "mlx5_1"},
			GPUs: []string{"GPU-5e6f7a8b-1111-2222-3333-444444444444", "GPU-1a2b3c4d-1111-2222-3333-444444444444"},
		}},
		GPUIndices: map[string]int{
			"GPU-1a2b3c4d-1111-2222-3333-444444444444": 0, "GPU-5e6f7a8b-1111-2222-3333-444444444444": 1,
		},
	}
}

// TestBindings compares with what docs/use/why-pending.md shows.
func TestBindings(t *testing.T) {
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	_, want, ok := strings.Cut(string(b), "```text\nRESOURCE")
	want, _, more := strings.Cut(want, "```")
	if !ok || !more {
		t.Fatal("the document has no example")
	}
	out, err := doctor(t, "--machine", machines+"dgx-h100.json", "--device-plugin", answering(t, docReport()))
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.HasSuffix(out, "\nRESOURCE"+want) {
		t.Errorf("the document and the program differ (-docs +program):\n%s", cmp.Diff("\nRESOURCE"+want, out))
	}
}

// TestFindingsOfTheDevicePlugin: the file has reports of a device plugin, and what doctor prints of each.
func TestFindingsOfTheDevicePlugin(t *testing.T) {
	golden.Rows(t, "testdata/reports.txt", *update, func(reported string) string {
		out, err := doctor(t, "--machine", machines+"dgx-h100.json", "--device-plugin", answering(t, json.RawMessage(reported)))
		if errors.Is(err, cli.ErrFindings) != strings.Contains(out, "\nproblem  ") {
			t.Errorf("error %v with\n%s", err, out)
		}
		return strings.TrimSuffix(out, "\n")
	})
}

func TestDevicePluginThatDoesNotAnswer(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hangs.Close)
	for name, url := range map[string]string{
		"gone": gone.URL, "hangs": hangs.URL, "another program": answering(t, map[string]string{"status": "ok"}),
		"no such path": answering(t, nil) + "/elsewhere", "no address": "::",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := doctor(t, "--machine", machines+"dgx-h100.json", "--device-plugin", url)
			if err != nil || !strings.Contains(out, "note  heddle-device-plugin\n  the device plugin does not answer: ") {
				t.Errorf("error %v, output\n%s", err, out)
			}
		})
	}
}

func TestDumpAsksNoDevicePlugin(t *testing.T) {
	out, err := doctor(t, "--machine", machines+"dgx-h100.json")
	if err != nil || strings.Contains(out, devicePlugin) || strings.Contains(out, "SERVED BY") {
		t.Errorf("error %v, output\n%s", err, out)
	}
}

func TestExpectedDevicePlugin(t *testing.T) {
	offers, none := h20Node(), h20Node()
	offers.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	for _, tt := range []struct {
		name     string
		in       input
		expected bool
	}{
		{"this host", input{here: true}, false},
		{"its address is given", input{here: true, pluginExpected: true}, true},
		{"the Node offers a resource", input{here: true, node: &clusterNode{node: offers}}, true},
		{"the Node offers none", input{here: true, node: &clusterNode{node: none}}, false},
		{"it has a pod on the Node", input{node: &clusterNode{node: none}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.config, tt.in.pluginErr = config.Default(), errors.New("gone")
			silent, _ := diagnose(&tt.in)
			other, _ := diagnose(&input{node: tt.in.node, config: tt.in.config})
			if got := len(silent.Findings) - len(other.Findings); got > 0 != tt.expected {
				t.Errorf("%d findings", got)
			}
		})
	}
}

func TestConditionOfTheNode(t *testing.T) {
	plugin := pod("heddle", "heddle-device-plugin-x", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": devicePlugin}
	})
	for _, tt := range []struct {
		name   string
		status corev1.ConditionStatus
		pods   []corev1.Pod
		want   string
	}{
		{"all is well", corev1.ConditionTrue, []corev1.Pod{plugin}, ""},
		{"not", corev1.ConditionFalse, []corev1.Pod{plugin}, "problem  Node gpu-1\n  HeddleReady is False: PortDown: mlx5_3: port 1 is DOWN\n"},
		{"not, and it no longer runs", corev1.ConditionFalse, nil, "note  Node gpu-1\n  HeddleReady is False: PortDown: mlx5_3: port 1 is DOWN (of heddle-device-plugin, which does not run here now)\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := h20Node()
			n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
			n.Status.Conditions = []corev1.NodeCondition{{
				Type: wellknown.ConditionDevices, Status: tt.status, Reason: "PortDown", Message: "mlx5_3: port 1 is DOWN",
			}}
			out, _ := doctor(t, "--node", "gpu-1", "--kubeconfig", serve(t, n, tt.pods))
			if got := strings.Contains(out, wellknown.ConditionDevices); got != (tt.want != "") || !strings.Contains(out, tt.want) {
				t.Errorf("no %q in\n%s", tt.want, out)
			}
		})
	}
}
