package doctor

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
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

func TestSharesWithFindings(t *testing.T) {
	since := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	rejection := func(kind string) report.Report {
		return report.Report{Rejected: []report.Rejection{{
			Namespace: "ml", Pod: "x", Container: "main", Kind: kind, Reason: "GPU 7: 2 GiB of 80 left; needs 4", Since: since,
		}}}
	}
	const head = "problem  pod ml/x\n  container main gets no GPU since 2026-11-21T10:00:00Z: GPU 7: 2 GiB of 80 left; needs 4\n  -> "
	for _, tt := range []struct {
		name    string
		reports report.Report
		wrong   bool
		want    []string
		not     string
	}{
		{"no room", rejection(allocate.RejectedFull), true, []string{head + "It starts when there is room."}, ""},
		{"an invalid request", rejection(allocate.RejectedRequest), true, []string{head + "Correct its limits or annotations"}, ""},
		{"an invalid choice", rejection(allocate.RejectedAllocation), true, []string{head + "Its scheduler chose so."}, ""},
		{"no choice", rejection(allocate.RejectedUnscheduled), true, []string{head + "Use a scheduler that knows shared GPUs"}, ""},
		{
			"a cordoned GPU without consumers",
			report.Report{
				GPUIndices: map[string]int{gpu7: 7},
				GPUs: []report.GPU{{Index: 7, UUID: gpu7, Mode: "sgpu", Shared: &quota.GPU{
					MemoryMiB: 81559, Slots: 16, Unhealthy: "cordoned",
				}}},
			},
			false,
			[]string{"7 (GPU-7a7b7c7d)  sgpu  -       0/100  0/79.6      0/16       cordoned\n", "No container has devices.\n"},
			"CHOSEN BY",
		},
		{
			"a GPU that is not there any more",
			report.Report{
				Bindings: []report.Binding{{
					UID: "u-1", Container: "init",
					Sharing: allocation.Sharing{Shares: []allocation.Share{{UUID: gpu7, VCore: 1, MemoryMiB: 100}}},
				}},
				GPUIndices: map[string]int{},
				GPUs:       []report.GPU{{Index: 6, UUID: gpu6, Mode: "sgpu", Shared: &quota.GPU{Slots: 1}}},
			},
			false,
			[]string{"GPU-7a7b7c7d  UID u-1  init       1      0.1         -           -\n"},
			"GPUS  ",
		},
		{
			"limits",
			report.Report{Enforcers: &report.Enforcers{Choice: enforce.Choice{WhyMemory: "memory is not limited", WhyCompute: "compute is limited by mps"}}},
			false,
			[]string{"note  limits of shares\n  memory is not limited\n", "note  limits of shares\n  compute is limited by mps\n"},
			"",
		},
		{
			"nothing is enforced",
			report.Report{
				Enforcers: &report.Enforcers{Choice: enforce.Choice{Enforced: enforce.Enforced{Memory: "none", Compute: "none"}, WhyMemory: "memory is not limited", WhyCompute: "compute is not limited"}},
				Bindings: []report.Binding{
					{Namespace: "ml", Pod: "x", Container: "main", Sharing: allocation.Sharing{NotEnforced: []string{"memory"}}}, {Namespace: "ml", Pod: "y", Container: "main"},
				},
			},
			false,
			[]string{
				"note  limits of shares\n  a container may use more than its share of memory\n  -> Give the node an enforcer",
				"note  limits of shares\n  a container may use more than its share of compute\n  -> Give the node an enforcer",
				"note  limits of shares\n  nothing keeps within its share: ml/x main\n",
			},
			"ml/y main",
		},
		{
			"no limits",
			report.Report{Enforcers: &report.Enforcers{LastError: "sgpu.enforce.memory is dmem, which cannot work here"}},
			true,
			[]string{"problem  limits of shares\n  shares are rejected: sgpu.enforce.memory is dmem, which cannot work here\n"},
			"",
		},
		{
			"an MPS daemon that does not start",
			report.Report{MPS: []enforce.Daemon{{
				GPU: gpu7, Index: 7, State: enforce.Starting, Since: since, Restarts: 3, Consumers: 1,
				Reason: "the control daemon ended as it started: exit status 1", LastError: "the control daemon ended as it started: exit status 1",
			}}},
			true,
			[]string{
				"problem  MPS daemon of GPU 7 (" + gpu7 + ")\n  is starting since 2026-11-21T10:00:00Z: " +
					"the control daemon ended as it started: exit status 1 (it never ran, 3 restarts)\n  -> ",
				"mps/" + gpu7 + "/log/control.log",
			},
			"",
		},
		{
			"an MPS daemon that died",
			report.Report{MPS: []enforce.Daemon{{
				GPU: gpu7, Index: 7, State: enforce.Broken, Since: since, Restarts: 1, Consumers: 1, LastRunning: since.Add(-time.Second),
				Reason: "the control daemon ended: signal: killed", LastError: "the control daemon ended: signal: killed",
			}}},
			true,
			[]string{"is broken since 2026-11-21T10:00:00Z: the control daemon ended: signal: killed (it last ran at 2026-11-21T09:59:59Z, 1 restart)\n"},
			"",
		},
		{
			"one that runs again, and one that always ran",
			report.Report{MPS: []enforce.Daemon{
				{GPU: gpu6, Index: 6, State: enforce.Running, Since: since, Consumers: 1},
				{GPU: gpu7, Index: 7, State: enforce.Running, Since: since, Restarts: 2, LastError: "the control daemon hangs", Consumers: 1},
			}},
			false,
			[]string{"note  MPS daemon of GPU 7 (" + gpu7 + ")\n  is running since 2026-11-21T10:00:00Z, after 2 restarts: the control daemon hangs\n"},
			"MPS daemon of GPU 6",
		},
		{
			"a container without a checkpoint entry",
			report.Report{Bindings: []report.Binding{{
				Namespace: "ml", Pod: "x", Container: "main", Unrecorded: true, GPUs: []string{gpu7},
			}}},
			true,
			[]string{"problem  pod ml/x\n  container main has a share without a checkpoint entry, which was lost"},
			"",
		},
		{
			"use is not measured",
			report.Report{Unmeasured: "no hostPID"},
			false,
			[]string{"note  use of shared GPUs\n  is not measured: no hostPID\n"},
			"",
		},
		{"exclusive GPUs only", docReport(), false, nil, "CONSUMERS"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.reports.Node = "gpu-1"
			out, err := doctor(t, "--machine", machines+"dgx-h100.json", "--device-plugin", answering(t, tt.reports))
			if errors.Is(err, cli.ErrFindings) != tt.wrong {
				t.Errorf("error %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if tt.not != "" && strings.Contains(out, tt.not) {
				t.Errorf("%q in\n%s", tt.not, out)
			}
		})
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
