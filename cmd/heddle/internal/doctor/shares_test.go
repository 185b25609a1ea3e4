package doctor

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
)

const (
	gpu6 = "GPU-6a6b6c6d-1111-2222-3333-444444444444"
	gpu7 = "GPU-7a7b7c7d-1111-2222-3333-444444444444"
)

// sharedReport is of a node with two shared GPUs: one with three consumers of
// which one has HCAs too, and one that a consumer has alone.
func sharedReport() report.Report {
	share := func(pod, container, uuid string, vcore int, gib int64, by string) report.Binding {
		return report.Binding{
			Namespace: "ml", Pod: pod, Container: container,
			Sharing: allocation.Sharing{
				Shares: []allocation.Share{{UUID: uuid, VCore: vcore, MemoryMiB: gib << 10}}, Policy: "best-effort", By: by,
			},
			Enforced: enforce.Enforced{Memory: config.EnforceDMem, Compute: config.EnforceMPS},
		}
	}
	r := report.Report{
		Node: "gpu-1",
		Resources: []report.Resource{
			{Name: "nvidia.com/sgpu", Registered: true, Capacity: 32, Allocatable: 32},
		},
		Bindings: []report.Binding{
			share("chat-0", "main", gpu7, 30, 24, "node"), share("chat-1", "main", gpu7, 30, 24, "node"),
			share("embed-0", "server", gpu7, 0, 8, "hami"), share("train-0", "main", gpu6, 100, 0, "heddle-scheduler"),
		},
		GPUIndices: map[string]int{gpu6: 6, gpu7: 7},
		GPUs: []report.GPU{
			{Index: 5, UUID: "GPU-5a", Mode: "native", Wanted: "native"},
			{Index: 6, UUID: gpu6, Mode: "sgpu", Wanted: "sgpu", Shared: &quota.GPU{
				Exclusive: true, VCore: 100, UsedMiB: 81559, MemoryMiB: 81559, Consumers: 1, Slots: 16,
			}},
			{Index: 7, UUID: gpu7, Mode: "sgpu", Wanted: "sgpu", Shared: &quota.GPU{
				Policy: "best-effort", VCore: 60, UsedMiB: 56 << 10, MemoryMiB: 81559, Consumers: 3, Slots: 16,
			}},
		},
	}
	r.Bindings[3].Shares[0].MemoryMiB, r.Bindings[3].Enforced = 81559, enforce.Enforced{Memory: config.EnforceNone, Compute: config.EnforceNone}
	r.Bindings[1].HCAs, r.Bindings[1].Class = []string{"mlx5_11"}, "PIX"
	return r
}

// TestShares compares with what docs/use/why-pending.md shows.
func TestShares(t *testing.T) {
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	_, want, ok := strings.Cut(string(b), "```text\nPOD")
	want, _, more := strings.Cut(want, "```")
	if !ok || !more {
		t.Fatal("the document has no example")
	}
	out, err := doctor(t, "--machine", machines+"dgx-h100.json", "--device-plugin", answering(t, sharedReport()))
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.HasSuffix(out, "\nPOD"+want) {
		t.Errorf("the document and the program differ (-docs +program):\n%s\n%s", cmp.Diff("\nPOD"+want, out), out)
	}
}

// TestDevicePluginThroughTheAPI asks from another machine.
func TestDevicePluginThroughTheAPI(t *testing.T) {
	plugin := pod("heddle-system", "dp-x", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": devicePlugin}
		p.Annotations = map[string]string{"prometheus.io/port": "9999"}
	})
	for _, tt := range []struct {
		name      string
		pods      []corev1.Pod
		may       bool
		want, not string
	}{
		{"it answers", []corev1.Pod{plugin}, true, "\n7 (GPU-7a7b7c7d)  sgpu  best-effort  60/100   56/79.6", "not known"},
		{"no right to ask", []corev1.Pod{plugin}, false, "\nnote  heddle-device-plugin\n  which container has which devices is not known: ask pod heddle-system/dp-x: unable to upgrade connection: pods \"dp-x\" is forbidden: " +
			"User \"u\" cannot create resource \"pods/portforward\"\n  -> It takes the right to create pods/portforward", "CONSUMERS"},
		{"it does not run", nil, true, "", "not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			api := apiserver.New()
			api.Put("nodes", h20Node())
			for i := range tt.pods {
				tt.pods[i].Spec.NodeName = "gpu-1"
				api.Put("pods", &tt.pods[i])
			}
			mux := http.NewServeMux()
			mux.Handle("/", api)
			answer := func(w http.ResponseWriter, v any) {
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(v); err != nil {
					t.Error(err)
				}
			}
			mux.HandleFunc("/api/v1/namespaces/heddle-system/pods/dp-x/portforward", func(w http.ResponseWriter, r *http.Request) {
				if !tt.may {
					w.WriteHeader(http.StatusForbidden)
					answer(w, metav1.Status{
						TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
						Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
						Message: `pods "dp-x" is forbidden: User "u" cannot create resource "pods/portforward"`,
					})
					return
				}
				clitest.Forward("9999", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, sharedReport()) }))(w, r)
			})
			server := httptest.NewServer(mux)
			t.Cleanup(server.Close)
			path := clitest.Kubeconfig(t, server.URL)
			out, _ := doctor(t, "--node", "gpu-1", "--kubeconfig", path)
			if !strings.Contains(out, tt.want) || strings.Contains(out, tt.not) {
				t.Errorf("no %q, or %q, in\n%s", tt.want, tt.not, out)
			}
		})
	}
}
