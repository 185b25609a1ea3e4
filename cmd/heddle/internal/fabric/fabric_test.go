package fabric

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/topo/fabrictest"
	"github.com/heddle-dev/heddle/topo/fabrictest/measure"
)

func TestUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"give either --group or --nodes":    {"--image", "x"},
		"--image is required":               {"--nodes", "a"},
		`invalid --launcher "slurm"`:        {"--nodes", "a", "--image", "x", "--launcher", "slurm"},
		"must be at least 1":                {"--nodes", "a", "--image", "x", "--seconds", "0"},
		"no API server to ask: give --kube": {"--nodes", "a", "--image", "x", "--kubeconfig", ""},
	} {
		_, _, err := clitest.Run(t, NewCommand(), append([]string{"test"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

func TestDevices(t *testing.T) {
	list := func(pairs ...any) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			out[corev1.ResourceName(pairs[i].(string))] = *resource.NewQuantity(int64(pairs[i+1].(int)), resource.DecimalSI)
		}
		return out
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			wellknown.HCACounts: `{"version":1,"hcas":{"rdma/shared":8,"rdma/gone":8}}`,
		}},
		Status: corev1.NodeStatus{Allocatable: list("cpu", 64, "nvidia.com/gpu", 8, "amd.com/gpu", 0, "rdma/shared", 512,
			"rdma/ib", 8, "hugepages-2Mi", 5, "attachable-volumes.kubernetes.io/x", 9)},
	}
	want := list("nvidia.com/gpu", 8, "rdma/shared", 8, "rdma/ib", 8)
	got, shared := devices(node)
	if len(got) != len(want) || shared {
		t.Errorf("devices %v, shared %t", got, shared)
	}
	for name, n := range want {
		if have := got[name]; have.Cmp(n) != 0 {
			t.Errorf("%s: %s, want %s", name, have.String(), n.String())
		}
	}
	for count, want := range []bool{false, true} {
		node.Status.Allocatable = list("nvidia.com/sgpu", count)
		if _, shared := devices(node); shared != want {
			t.Errorf("%d shares: %t", count, shared)
		}
	}
}

func TestObjectName(t *testing.T) {
	for group, want := range map[string]string{
		"": "heddle-fabric-test", "Leaf_1/a": "heddle-fabric-test-leaf-1-a", "x-": "heddle-fabric-test-x",
	} {
		if got := objectName(group); got != want {
			t.Errorf("%q: %s", group, got)
		}
	}
}

// TestPod checks what the guarantees of a test rest on: the pod has all devices of its node, gives way at once, and ends.
func TestPod(t *testing.T) {
	p := newTest(nil, &options{namespace: "ns", image: "perftest", scheduler: "s", maxDuration: time.Hour}, &cluster.Client{})
	p.leases["leaf-1"], p.id = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "key", UID: "u"}}, "u"
	all := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	pod := p.pod(&node{name: "GPU-1.example", group: "leaf-1", devices: all})
	s := &pod.Spec
	if s.PriorityClassName != "heddle-fabric-test" || *s.TerminationGracePeriodSeconds != 1 || *s.ActiveDeadlineSeconds != 3900 ||
		s.RestartPolicy != corev1.RestartPolicyNever || *s.AutomountServiceAccountToken || pod.OwnerReferences[0].UID != "u" {
		t.Errorf("pod %+v", pod)
	}
	if diff := cmp.Diff(all, s.Containers[0].Resources.Requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if got := s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]; got != "GPU-1.example" {
		t.Errorf("node %s", got)
	}
}

// TestLock takes a group that nobody has, one of a test that died, and not one of a test in progress.
func TestLock(t *testing.T) {
	const hour = "2026-01-01T01:00:00Z"
	for _, tt := range []struct{ name, created, want string }{
		{name: "free"},
		{name: "of a test that died", created: hour},
		{name: "of a test in progress", created: time.Now().UTC().Format(time.RFC3339), want: "group leaf-1: another test runs there until "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lease := func(w http.ResponseWriter, created string) {
				fmt.Fprintf(w, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"heddle-fabric-test-leaf-1",
					"uid":"u","creationTimestamp":%q},"spec":{"leaseDurationSeconds":3600}}`, created)
			}
			created := tt.created
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch at := "/apis/coordination.k8s.io/v1/namespaces/ns/leases"; {
				case r.Method == http.MethodPost && r.URL.Path == at && created == "":
					lease(w, hour)
				case r.Method == http.MethodPost && r.URL.Path == at:
					w.WriteHeader(http.StatusConflict)
					fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"AlreadyExists","code":409}`)
				case r.Method == http.MethodGet && r.URL.Path == at+"/heddle-fabric-test-leaf-1":
					lease(w, created)
				case r.Method == http.MethodDelete && r.URL.Path == at+"/heddle-fabric-test-leaf-1":
					created = ""
				default:
					t.Errorf("%s %s", r.Method, r.URL)
				}
			}))
			t.Cleanup(server.Close)
			client, err := kube.ClientFor(&rest.Config{Host: server.URL}, "test")
			if err != nil {
				t.Fatal(err)
			}
			run := newTest(nil, &options{namespace: "ns", maxDuration: time.Hour}, &cluster.Client{Interface: client})
			run.nodes = []*node{{name: "a", group: "leaf-1"}, {name: "b", group: "leaf-1"}}
			err = run.lock(t.Context())
			if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
				t.Fatalf("%v, want %q", err, tt.want)
			}
			if err == nil && (run.id != "u" || len(run.leases) != 1) {
				t.Errorf("id %s, leases %v", run.id, run.leases)
			}
		})
	}
}

func TestPorts(t *testing.T) {
	n := &node{name: "a"}
	n.add([]v1alpha1.Rail{
		{HCA: "mlx5_0", ID: "0", Port: 1, Role: "fabric", LinkState: v1alpha1.LinkActive, RateGbps: 400, Switch: &v1alpha1.Switch{ID: "s"}},
		{HCA: "mlx5_1", ID: "1", Port: 1, Role: "fabric", LinkState: v1alpha1.LinkDown, RateGbps: 400, Rail: 1},
		{HCA: "mlx5_2", ID: "2", Port: 1, Role: "storage", LinkState: v1alpha1.LinkActive},
		{HCA: "mlx5_3", ID: "3", Port: 1, Role: "fabric", LinkState: v1alpha1.LinkActive, RateGbps: 200, Rail: 2},
	})
	want := []fabrictest.Port{
		{Node: "a", HCA: "mlx5_0", ID: "0", Number: 1, Leaf: "s", Gbps: 388},
		{Node: "a", HCA: "mlx5_3", ID: "3", Number: 1, Rail: 2, Gbps: 194},
	}
	if diff := cmp.Diff(want, n.ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int32{0, 2}, n.rails()); diff != "" || (&test{nodes: []*node{n}}).hcas([]string{"a"}, 2) != "mlx5_3" {
		t.Errorf("rails (-want +got):\n%s", diff)
	}
	n.read("hca mlx5_0 16 28.41.1000 16.0 GT/s PCIe \nhca mlx5_3 8 28.41.1000 8.0 GT/s PCIe \nVersion: 6.10\nnoise\nhca mlx5_9\n")
	if n.ports[0].Gbps != 0.85*256 || n.ports[1].Gbps != 0.85*64 || n.versions != "perftest 6.10, firmware 28.41.1000" {
		t.Errorf("%+v, %s", n.ports, n.versions)
	}
}

// mpirun stands in for the nodes of a collective: rail 1 of node c is slow.
type mpirun struct{ runs []string }

func (m *mpirun) Exec(_ context.Context, node string, command []string, out io.Writer) error {
	line := strings.Join(command, " ")
	busbw := 100
	if _, rail, ok := strings.Cut(line, "NCCL_IB_HCA=="); strings.Contains(line, "host-c:8") && (!ok || strings.HasPrefix(rail, "mlx5_3,mlx5_7 ")) {
		busbw = 20
	}
	_, args, _ := strings.Cut(line, " --host ")
	m.runs = append(m.runs, node+": "+args)
	_, err := fmt.Fprintf(out, "  1024  256  float  sum  -1  12.0  0.09  0.16  0  12.1  0.08  %d  0\n", busbw)
	return err
}

// TestCollective names a rail whose HCA has another name on the slow node.
func TestCollective(t *testing.T) {
	m := &mpirun{}
	on := &measure.Nodes{Executor: m, Hosts: map[string]string{}}
	c := testCommand()
	c.SetErr(t.Output())
	program := measure.Collective{Launcher: measure.MPI, Ranks: 8, Args: []string{"all_reduce_perf"}}
	run := newTest(c, &options{program: program}, nil)
	for _, name := range []string{"a", "b", "c", "d"} {
		n := &node{name: name, ports: []fabrictest.Port{{HCA: "mlx5_0"}, {HCA: "mlx5_3", Rail: 1}}}
		if name == "c" {
			n.ports[1].HCA = "mlx5_7"
		}
		on.Hosts[name], run.nodes = "host-"+name, append(run.nodes, n)
	}
	if err := run.collective(t.Context(), on); err != nil {
		t.Fatal(err)
	}
	want := &fabrictest.Outcome{Whole: 20, Best: 100, Runs: 6, Nodes: []string{"c"}, Rail: new(int32(1))}
	if diff := cmp.Diff(want, run.answer.Collective); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if got := run.answer.Faults; len(got) != 1 || got[0].Where[0] != "c rail 1" || got[0].Limit != "80.0 GB/s" {
		t.Errorf("faults %+v", got)
	}
	const last = "a: host-a:8,host-c:8 -np 16 --bind-to none env NCCL_IB_HCA==mlx5_3,mlx5_7 all_reduce_perf"
	if got := m.runs[len(m.runs)-1]; got != last {
		t.Errorf("the last run %q, want %q", got, last)
	}
}
