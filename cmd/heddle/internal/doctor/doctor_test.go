package doctor

import (
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/names"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

var update = flag.Bool("update", false, "write the outputs in docs/troubleshooting.md")

const (
	machines = "../../../../test/machines/"
	page     = "../../../../docs/troubleshooting.md"
)

func doctor(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("NODE_NAME", "")
	var out strings.Builder
	err := Run(t.Context(), args, &out)
	return out.String(), err
}

// TestOutputsInTheDocs runs every `heddle doctor` that docs/troubleshooting.md
// shows, and compares what it prints with what the page says.
func TestOutputsInTheDocs(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const open, end = "```console\n$ heddle doctor ", "```\n"
	parts := strings.Split(string(b), open)
	if len(parts) < 4 {
		t.Fatalf("%d examples, want more", len(parts)-1)
	}
	fresh := parts[0]
	for _, part := range parts[1:] {
		command, rest, ok := strings.Cut(part, "\n")
		if !ok {
			t.Fatal("an example without output")
		}
		_, rest, ok = strings.Cut(rest, end)
		if !ok {
			t.Fatalf("the example %s has no end", command)
		}
		args := strings.Fields(strings.ReplaceAll(command, "test/machines/", machines))
		out, err := doctor(t, args...)
		if err != nil && !errors.Is(err, cli.ErrFindings) {
			t.Fatal(err)
		}
		fresh += open + command + "\n" + out + end + rest
	}
	if *update {
		if err := os.WriteFile(page, []byte(fresh), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(b), fresh); diff != "" {
		t.Errorf("the page and the program differ (-page +program; -update writes it):\n%s", diff)
	}
}

func TestExitSaysWhetherSomethingIsWrong(t *testing.T) {
	for name, wrong := range map[string]bool{
		"dgx-h100": false, "one-dead-port": true, "b200-one-gpu-off-nvlink": true,
		"ipoib-down": false, "soft-rdma-only": false, "amd-epyc-no-gpu": false,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := doctor(t, "--machine", machines+name+".json")
			if got := errors.Is(err, cli.ErrFindings); got != wrong {
				t.Errorf("error %v, want findings: %v", err, wrong)
			}
		})
	}
}

func TestBrokenConfigurationIsTold(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cluster-config"), []byte("mode: fast\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := doctor(t, "--machine", machines+"dgx-h100.json", "--config", dir)
	if err == nil || !strings.Contains(err.Error(), "cluster-config:1") {
		t.Errorf("error %v, want one that names the file and the line", err)
	}
}

func pod(namespace, name string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if change != nil {
		change(&p)
	}
	return p
}

func owned(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}}
	}
}

func tolerating(t corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{t} }
}

func TestBlockedGroupsByOwner(t *testing.T) {
	pods := []corev1.Pod{
		pod("default", "train-0", nil),
		pod("web", "shop-7f9c-b", func(p *corev1.Pod) {
			owned("ReplicaSet", "shop-7f9c")(p)
			p.Labels = map[string]string{"pod-template-hash": "7f9c"}
		}),
		pod("web", "shop-7f9c-a", func(p *corev1.Pod) {
			owned("ReplicaSet", "shop-7f9c")(p)
			p.Labels = map[string]string{"pod-template-hash": "7f9c"}
		}),
		pod("ml", "job-x", owned("Job", "job")),
		pod("ml", "done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("monitoring", "node-exporter-q", owned("DaemonSet", "node-exporter")),
		pod("kube-system", "etcd-gpu-1", func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}),
		pod("kube-system", "kube-proxy-z", func(p *corev1.Pod) {
			owned("DaemonSet", "kube-proxy")(p)
			tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})(p)
		}),
	}
	taint := corev1.Taint{Key: "nvidia.com/gpu.product", Value: "NVIDIA-H20", Effect: corev1.TaintEffectNoSchedule}
	want := []Group{
		{Owner{"DaemonSet", "monitoring", "node-exporter"}, []string{"node-exporter-q"}},
		{Owner{"Deployment", "web", "shop"}, []string{"shop-7f9c-a", "shop-7f9c-b"}},
		{Owner{"Job", "ml", "job"}, []string{"job-x"}},
		{Owner{"Pod", "default", "train-0"}, []string{"train-0"}},
	}
	if diff := cmp.Diff(want, Blocked(pods, taint)); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

func TestTolerates(t *testing.T) {
	taint := corev1.Taint{Key: "nvidia.com/gpu.product", Value: "NVIDIA-H20", Effect: corev1.TaintEffectNoSchedule}
	for _, tt := range []struct {
		name string
		t    corev1.Toleration
		want bool
	}{
		{"everything", corev1.Toleration{Operator: corev1.TolerationOpExists}, true},
		{"the key", corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpExists}, true},
		{"the value, operator left out", corev1.Toleration{Key: taint.Key, Value: "NVIDIA-H20"}, true},
		{"another value", corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpEqual, Value: "NVIDIA-H800"}, false},
		{"another key", corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}, false},
		{"another effect", corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}, false},
		{"a number", corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpGt, Value: "1"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tolerates(tt.t, taint); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// serve is an API server with one Node and its pods; it returns a kubeconfig.
func serve(t *testing.T, node *corev1.Node, pods []corev1.Pod) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("GET /api/v1/nodes/"+node.Name, func(w http.ResponseWriter, _ *http.Request) {
		node.APIVersion, node.Kind = "v1", "Node"
		answer(w, node)
	})
	mux.HandleFunc("GET /api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("fieldSelector"); got != "spec.nodeName="+node.Name {
			t.Errorf("listed pods by %q", got)
		}
		answer(w, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: pods})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + server.URL + "}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func h20Node() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   "gpu-1",
		Labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-H20", "nvidia.com/gpu.count": "8", names.RDMACount: "4"},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: names.FieldManager, Operation: metav1.ManagedFieldsOperationApply,
		}},
	}}
}

func TestTaintsThroughTheAPI(t *testing.T) {
	pods := []corev1.Pod{
		pod("monitoring", "node-exporter-q", owned("DaemonSet", "node-exporter")),
		pod("kube-system", "kube-proxy-z", tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})),
	}
	config := serve(t, h20Node(), pods)
	out, err := doctor(t, "taints", "--if", "gpuProduct", "--node", "gpu-1", "--kubeconfig", config)
	want := "With the taint nvidia.com/gpu.product=NVIDIA-H20:NoSchedule on Node gpu-1, these could not come back:\n\n" +
		"OWNER      NAMESPACE   NAME           PODS\n" +
		"DaemonSet  monitoring  node-exporter  node-exporter-q\n\n" +
		"What they would need:\n\n" +
		"  tolerations:\n  - {key: nvidia.com/gpu.product, operator: Exists, effect: NoSchedule}\n"
	if diff := cmp.Diff(want, out); diff != "" || !errors.Is(err, cli.ErrFindings) {
		t.Errorf("error %v, output (-want +got):\n%s", err, diff)
	}
	out, err = doctor(t, "taints", "--if", "nodeUsage", "--node", "gpu-1", "--kubeconfig", config)
	if want := "Node gpu-1 has no label heddle.dev/node.usage, so nodeUsage would set no taint.\n"; out != want || err != nil {
		t.Errorf("error %v, output %q, want %q", err, out, want)
	}
	config = serve(t, h20Node(), pods[1:])
	if out, err = doctor(t, "taints", "--if", "gpuProduct", "--node", "gpu-1", "--kubeconfig", config); err != nil {
		t.Errorf("error %v, output %q", err, out)
	}
}

func TestNodeThroughTheAPI(t *testing.T) {
	quantities := func(gpu, hca string) corev1.ResourceList {
		return corev1.ResourceList{
			"nvidia.com/gpu": resource.MustParse(gpu), "rdma/hca_shared_devices_ib": resource.MustParse(hca),
		}
	}
	discovery := pod("heddle", "fd", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": "heddle-feature-discovery"}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	plugin := pod("heddle", "dp", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": "heddle-device-plugin"}
	})
	for _, tt := range []struct {
		name string
		node func(*corev1.Node)
		pods []corev1.Pod
		want []string
	}{
		{"all is well", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities("8", "256"), quantities("8", "256")
		}, []corev1.Pod{discovery}, nil},
		{"no device plugin", func(*corev1.Node) {}, []corev1.Pod{discovery}, nil},
		{"nothing registered", func(*corev1.Node) {}, []corev1.Pod{discovery, plugin}, []string{
			"resource nvidia.com/gpu: is not advertised, though the Node's labels tell of 8 devices",
			"resource rdma/hca_shared_devices_ib: is not advertised, though the Node's labels tell of 4 devices",
		}},
		{"unhealthy and empty", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities("8", "0"), quantities("7", "0")
		}, []corev1.Pod{discovery}, []string{
			"resource nvidia.com/gpu: has allocatable 7 of 8: the others are unhealthy",
			"resource rdma/hca_shared_devices_ib: is 0: a device plugin registered it and lists no device",
		}},
		{"no pod of feature-discovery", func(n *corev1.Node) {
			n.ManagedFields, n.Labels = nil, nil
		}, nil, []string{"heddle-feature-discovery: has no pod here, so the Node has none of our labels"}},
		{"feature-discovery is denied", func(n *corev1.Node) {
			n.ManagedFields, n.Labels = nil, nil
		}, []corev1.Pod{discovery}, []string{"heddle-feature-discovery: runs here and has written nothing to the Node"}},
		{"not ready", func(n *corev1.Node) {
			n.Labels = nil
			n.Status.Conditions = []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "no CNI",
			}}
		}, []corev1.Pod{discovery}, []string{"Node gpu-1: is not Ready: KubeletNotReady: no CNI"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := h20Node()
			tt.node(node)
			out, err := doctor(t, "--node", "gpu-1", "--kubeconfig", serve(t, node, tt.pods))
			var got []string
			lines := strings.Split(out, "\n")
			for i, line := range lines {
				if subject, ok := strings.CutPrefix(line, "problem  "); ok {
					got = append(got, subject+": "+strings.TrimSpace(lines[i+1]))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if errors.Is(err, cli.ErrFindings) != (len(tt.want) > 0) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestNodeAgainstAMachine(t *testing.T) {
	node := h20Node()
	node.Labels["nvidia.com/gpu.count"] = "7"
	out, err := doctor(t, "--machine", machines+"h20-4nic.json", "--node", "gpu-1", "--kubeconfig", serve(t, node, nil))
	if !errors.Is(err, cli.ErrFindings) || !strings.Contains(out, "nvidia.com/gpu.count") ||
		!strings.Contains(out, "+ nvidia.com/gpu.memory=97871") {
		t.Errorf("error %v, output:\n%s", err, out)
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	config := serve(t, h20Node(), nil)
	for _, args := range [][]string{
		{"--nodes", "x"},
		{"surprise"},
		{"taints"},
		{"taints", "--if", "gpuProduct"},
		{"taints", "--if", "gpuproduct", "--node", "gpu-1", "--kubeconfig", config},
	} {
		_, err := doctor(t, args...)
		if _, usage := errors.AsType[*cli.UsageError](err); !usage {
			t.Errorf("%v: error %v, want a usage error", args, err)
		}
	}
}
