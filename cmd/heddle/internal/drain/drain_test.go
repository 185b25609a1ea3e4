package drain

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/clitest"
)

// pod has a controller of this kind, or none if owner is "".
func pod(name, owner string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name)}}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Controller: new(true)}}
	}
	p.Spec.Containers = []corev1.Container{{Name: "main"}}
	return p
}

func binding(pod string, gpus, hcas []string) report.Binding {
	return report.Binding{Namespace: "ml", Pod: pod, UID: "uid-" + pod, Container: "main", GPUs: gpus, HCAs: hcas}
}

// reported is a node with two GPUs, the first in MIG devices.
func reported() *report.Report {
	shared := binding("shared", nil, nil)
	shared.Shares = []allocation.Share{{UUID: "GPU-b"}}
	claimed := binding("first", []string{"GPU-b"}, nil)
	claimed.Container, claimed.Claim = "", "team"
	return &report.Report{
		Node: "gpu-1", Resources: []report.Resource{{Name: "nvidia.com/gpu"}},
		GPUs:       []report.GPU{{Index: 0, UUID: "GPU-a"}, {Index: 1, UUID: "GPU-b"}},
		GPUIndices: map[string]int{"GPU-a": 0, "MIG-a": 0, "GPU-b": 1},
		Bindings: []report.Binding{
			binding("job", []string{"MIG-a"}, []string{"mlx5_0"}), shared, binding("bare", []string{"GPU-a"}, nil),
			binding("agent", []string{"GPU-b"}, nil), binding("hca", nil, []string{"mlx5_1"}), binding("over", []string{"GPU-b"}, nil),
			claimed,
		},
	}
}

func podsOfNode() []corev1.Pod {
	over, waiting, second := pod("over", "Job"), pod("waiting", "Job"), pod("second", "Job")
	second.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("team")}}
	over.Status.Phase = corev1.PodSucceeded
	waiting.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": {}}
	return []corev1.Pod{
		pod("job", "Job"), pod("shared", "ReplicaSet"), pod("bare", ""), pod("agent", "DaemonSet"), pod("hca", "Job"),
		over, waiting, pod("web", "ReplicaSet"), pod("first", "Job"), second,
	}
}

func TestHolders(t *testing.T) {
	for _, tt := range []struct {
		name  string
		gpus  []string
		force bool
		want  []string
	}{
		{"the node", nil, false, []string{
			"ml/job [MIG-a mlx5_0]", "ml/shared [GPU-b]", "ml/bare [GPU-a] no controller would make another one; --force evicts it",
			"ml/agent [GPU-b] its DaemonSet would make another one here", "ml/hca [mlx5_1]", "ml/waiting [nvidia.com/gpu]", "ml/first [GPU-b]", "ml/second [GPU-b]",
		}},
		{"a GPU in MIG devices", []string{"GPU-a"}, true, []string{"ml/job [MIG-a]", "ml/bare [GPU-a]"}},
		{"a shared GPU", []string{"GPU-b"}, false, []string{
			"ml/shared [GPU-b]", "ml/agent [GPU-b] its DaemonSet would make another one here", "ml/first [GPU-b]", "ml/second [GPU-b]",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, h := range holders(reported(), podsOfNode(), tt.gpus, tt.force) {
				got = append(got, strings.TrimSpace(h.String()+" ["+strings.Join(h.devices, " ")+"] "+h.kept))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// server is an API server with that node, where a budget protects a pod once.
type server struct {
	t        *testing.T
	pods     []corev1.Pod
	budget   string
	patches  []string
	evicted  []string
	rejected int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "/pods/dp-x/portforward") {
		clitest.Forward("9102", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(reported())
		}))(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	var answer any = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
	node := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	name, evicts := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/ml/pods/"), "/eviction")
	switch {
	case evicts && s.budget == name:
		s.budget = ""
		s.rejected++
		w.WriteHeader(http.StatusTooManyRequests)
		answer = metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonTooManyRequests, Code: http.StatusTooManyRequests, Message: "Cannot evict pod: budget",
		}
	case evicts:
		s.evicted = append(s.evicted, name)
		s.pods = slices.DeleteFunc(s.pods, func(p corev1.Pod) bool { return p.Name == name })
	case r.Method == http.MethodPatch:
		s.patches = append(s.patches, string(body))
		answer = node
	case r.URL.Path == "/api/v1/nodes/gpu-1":
		answer = node
	case r.URL.Path == "/api/v1/pods":
		plugin := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "heddle-system", Name: "dp-x"}}
		plugin.Labels = map[string]string{"app.kubernetes.io/name": "heddle-device-plugin"}
		answer = &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: append(s.pods, plugin)}
	default:
		s.t.Errorf("%s %s", r.Method, r.URL.Path)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *server) run(args ...string) (string, error) {
	s.t.Helper()
	return clitest.RunOn(s.t, s, NewCommand(), args...)
}

func TestDrain(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    []string
		budget  string
		evicted []string
		patches []string
		out     []string
		left    bool
	}{
		{
			"dry run",
			[]string{"gpu-1", "--dry-run"},
			"", nil, nil,
			[]string{"ml/bare     GPU-a           no: no controller", "ml/job      MIG-a mlx5_0    yes", "Nothing was changed."},
			false,
		},
		{
			"the node",
			[]string{"gpu-1"},
			"job",
			[]string{"shared", "hca", "waiting", "first", "second", "job"},
			[]string{`{"spec":{"unschedulable":true}}`},
			[]string{"Node gpu-1 is cordoned", "ml/job: waits: Cannot evict pod: budget\n", "ml/job: evicted\n", "These pods still have devices of node gpu-1:"},
			true,
		},
		{
			"a GPU, by index",
			[]string{"gpu-1", "0", "--force"},
			"",
			[]string{"job", "bare"},
			[]string{`{"metadata":{"annotations":{"heddle.dev/cordoned-gpus":"GPU-a"},"resourceVersion":""}}`},
			[]string{"GPU GPU-a of node gpu-1 is cordoned", "No pod has GPU GPU-a of node gpu-1.\n"},
			false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &server{t: t, pods: podsOfNode(), budget: tt.budget}
			out, err := s.run(tt.args...)
			if left := errors.Is(err, cli.ErrFindings); left != tt.left || err != nil && !left {
				t.Errorf("%v", err)
			}
			for _, want := range tt.out {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if diff := cmp.Diff([][]string{tt.evicted, tt.patches}, [][]string{s.evicted, s.patches}); diff != "" {
				t.Errorf("evicted and written (-want +got):\n%s", diff)
			}
			if (tt.budget != "") != (s.rejected > 0) {
				t.Errorf("%d evictions were rejected", s.rejected)
			}
		})
	}
}

func TestDrainInVain(t *testing.T) {
	s := &server{t: t, pods: []corev1.Pod{pod("job", "Job")}}
	s.pods[0].DeletionTimestamp = new(metav1.Now())
	out, err := s.run("gpu-1", "--timeout", "1s")
	if code := cli.Exit(err, io.Discard); code != cli.ExitFindings || !strings.HasSuffix(out, "Not done in 1s: left are ml/job.\n") {
		t.Errorf("exit code %d, %v, output:\n%s", code, err, out)
	}
	if _, err := s.run("gpu-1", "--timeout", "1ms"); err == nil || !strings.Contains(err.Error(), "--timeout") {
		t.Errorf("%v", err)
	}
}
