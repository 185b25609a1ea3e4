package topo

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/test/topomaster"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// longAgo is ten days and a half ago, which is shown as 10d.
var longAgo = time.Now().Add(-252 * time.Hour).UTC()

// sample is a dragonfly of two nodes, one with wrong cables, and a node
// in no group.
func sample() snapshot.Topology {
	return snapshot.Topology{
		Nodes: fabric.Count{Ready: 2, Degraded: 1}, GPUs: snapshot.GPUs{Free: new(5), Offered: 14, Total: 16},
		StaleSince: longAgo,
		Tree: []snapshot.Element{
			{Name: "cpu1", Kind: "node", Status: "Ready"},
			{
				Name: "dragonfly-1", Kind: "dragonfly", Status: "Degraded", GPUs: snapshot.GPUs{Free: new(5), Total: 16},
				Nodes: &fabric.Count{Ready: 1, Degraded: 1},
				Child: []snapshot.Element{
					{
						Name: "n1", Kind: "node", Status: "Degraded", GPUs: snapshot.GPUs{Free: new(5), Total: 8},
						Reasons: []fabric.Reason{{Kind: "stale", Since: longAgo}, {Kind: "miscabled", Count: 2}},
					},
					{Name: "n2", Kind: "node", Status: "Ready", GPUs: snapshot.GPUs{Free: new(0), Total: 8}, Cordoned: true},
				},
			},
		},
		Findings: []fabric.Finding{
			{
				Kind: fabric.Miscabled, Node: "n1", HCA: "mlx5_0", Port: 1, Rail: 3, Plane: 1, Since: longAgo,
				Expected: fabric.Switch{ID: "b83f", Name: "leaf-3"}, Found: fabric.Switch{ID: "b840", Port: "7"},
			},
			{Kind: fabric.Missing, Node: "n1", Rail: 4, Expected: fabric.Switch{ID: "b841"}},
			{Kind: fabric.Duplicate, Node: "n1", HCA: "mlx5_5", Port: 1, Rail: 5, Other: "n2"},
			{Kind: fabric.BadPath, Node: "n2", Other: "dragonfly-1"},
		},
		Ignored: []snapshot.Ignored{{Name: "liar", Reason: "it is not owned by the Node of its name"}},
	}
}

// sampleGangs are one that waits, one that runs on both nodes and beyond, and
// one in an unknown state.
func sampleGangs() snapshot.Gangs {
	began := longAgo
	return snapshot.Gangs{
		StaleSince: longAgo,
		Gangs: []snapshot.Gang{
			{
				Namespace: "ai", Name: "big", API: gang.Volcano, State: gang.Queued, Members: 18, GPUs: 144, Since: began, RejectedSince: began.Add(time.Minute),
				Reason: "rejected by podgroup ai/big: 2 of 18 fit", Nodes: []string{},
			},
			{Namespace: "ai", Name: "tf", API: gang.PodGroup, State: gang.Running, Members: 2, Running: 2, GPUs: 8, Since: began, Nodes: []string{"n2", "n1"}, Group: &snapshot.GroupName{Name: "dragonfly-1", Kind: "dragonfly"}},
			{Namespace: "zoo", Name: "wide", API: gang.LeaderWorkerSet, State: gang.Unknown, Members: 3, GPUs: 3, Reason: "1 pod on a lost node", Nodes: []string{"n1", "gone", "cpu1"}},
		},
	}
}

func server(t *testing.T, all snapshot.Topology) *httptest.Server {
	t.Helper()
	return serverWith(t, all, snapshot.Gangs{Gangs: []snapshot.Gang{}})
}

func serverWith(t *testing.T, all snapshot.Topology, gangs snapshot.Gangs) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const proxy = "/api/v1/namespaces/gpu/services/heddle-topo-master:9001/proxy"
		switch path := strings.TrimPrefix(r.URL.Path, proxy); path {
		case "/v1/topology":
			_ = json.NewEncoder(w).Encode(all)
		case "/v1/gangs":
			_ = json.NewEncoder(w).Encode(gangs)
		case "/v1/export/slurm-block":
			_, _ = w.Write([]byte("BlockName=x # of kind " + r.URL.Query().Get("kind") + "\n"))
		case "/api/v1/services":
			w.Header().Set("Content-Type", "application/json")
			list := corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}}
			if r.URL.Query().Get("labelSelector") == "app.kubernetes.io/name=heddle-topo-master" {
				s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "heddle-topo-master"}}
				s.Spec.Ports = []corev1.ServicePort{{Port: 9001}}
				list.Items = append(list.Items, s)
			}
			_ = json.NewEncoder(w).Encode(list)
		default:
			http.Error(w, "no "+r.URL.Path, http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// TestCommands: the file has commands, what they print, and the error.
func TestCommands(t *testing.T) {
	s := server(t, sample())
	golden.Rows(t, "testdata/commands.txt", *update, func(args string) string {
		out, _, err := clitest.Run(t, NewCommand(), strings.Fields(strings.ReplaceAll(args, "$URL", s.URL))...)
		if err != nil {
			out += "error: " + err.Error()
		}
		return strings.TrimSuffix(strings.ReplaceAll(out, s.URL, "$URL"), "\n")
	})
}

func TestYAML(t *testing.T) {
	s := server(t, sample())
	for verb, want := range map[string]any{"tree": sample(), "miscabled": miscabled{sample().Findings, sample().Ignored}} {
		out, _, err := clitest.Run(t, NewCommand(), verb, "-o", "yaml", "--topo-master", s.URL)
		if err != nil && !errors.Is(err, cli.ErrFindings) {
			t.Error(err)
		}
		text, err := yaml.Marshal(want)
		if diff := cmp.Diff(string(text), out); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", verb, err, diff)
		}
	}
}

func TestThroughTheAPIServer(t *testing.T) {
	s := server(t, sample())
	config := clitest.Kubeconfig(t, s.URL)
	for _, args := range [][]string{{"tree"}, {"export", "--format", "slurm-block"}} {
		direct, _, err := clitest.Run(t, NewCommand(), append(args, "--topo-master", s.URL)...)
		if err != nil {
			t.Fatal(err)
		}
		proxied, _, err := clitest.Run(t, NewCommand(), append(args, "--kubeconfig", config)...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(direct, proxied); diff != "" {
			t.Errorf("%v (-direct +proxied):\n%s", args, diff)
		}
	}
}

// TestSecured asks topo-master's own handler, behind TLS and authentication.
func TestSecured(t *testing.T) {
	s := topomaster.Start(t)
	reader, bound := topomaster.TokenFile(t, topomaster.Reader), topomaster.TokenFile(t, topomaster.Bound)
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"a token for the API server", []string{"--ca-file", s.CAFile, "--token-file", reader}, ""},
		{"a token for topo-master", []string{"--ca-file", s.CAFile, "--token-file", bound}, ""},
		{"by another address", []string{"--ca-file", s.CAFile, "--token-file", bound, "--tls-server-name", topomaster.ServerName}, ""},
		{"the certificate's name is another", []string{"--ca-file", s.CAFile, "--token-file", bound, "--tls-server-name", "a.org"}, "not a.org"},
		{"no token", []string{"--ca-file", s.CAFile}, "topo-master answers 401 Unauthorized"},
		{"who may not", []string{"--ca-file", s.CAFile, "--token-file", topomaster.TokenFile(t, topomaster.Stranger)}, "topo-master answers 403 Forbidden"},
		{"no authority", []string{"--token-file", reader}, "unknown authority"},
		{"no token file", []string{"--ca-file", s.CAFile, "--token-file", "/nowhere"}, "/nowhere"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, _, err := clitest.Run(t, NewCommand(), append([]string{"tree", "--topo-master", s.URL}, tt.args...)...)
			if tt.want == "" && (err != nil || !strings.Contains(out, "dragonfly-1")) {
				t.Errorf("error %v, output:\n%s", err, out)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestDegradedLinks(t *testing.T) {
	topology := snapshot.Topology{Findings: []fabric.Finding{
		{Kind: fabric.Degraded, Node: "a", HCA: "mlx5_3", ID: "0000:5e:00.0", Port: 1, Rail: 3, What: "symbol-errors", Limit: "1.0e-12 per bit (IBTA)", Value: "3.1e-11 per bit"},
		{Kind: fabric.Degraded, Node: "a", HCA: "mlx5_3", ID: "0000:5e:00.0", Port: 1, Rail: 3, End: "switch", What: "link-downs", Limit: "in 2 of 12 readings (heddle)", Value: "in 3 of 12 readings"},
		{Kind: fabric.Degraded, Node: "a", HCA: "mlx5_3", ID: "0000:5e:00.0", Rail: 3, What: "pcie-width", Limit: "x16 (PCIe)", Value: "x8"},
		{Kind: fabric.Degraded, Node: "b", ID: "GPU-1", Link: "NVLink 3", What: "nvlink-replays", Limit: "in 2 of 12 readings (heddle)", Value: "in 4 of 12 readings"},
		{Kind: fabric.Degraded, Node: "b", ID: "GPU-1", What: "pcie-width", Limit: "x16 (PCIe)", Value: "x8"},
		{Kind: fabric.Degraded, Node: "b", ID: "0000:06:00.0", Link: "NVSwitch link 30", What: "sxid-fatal", Limit: "none (NVSwitch driver)", Value: "20034 LTSSM Fault Up"},
	}}
	out, _, err := clitest.Run(t, NewCommand(), "miscabled", "--topo-master", server(t, topology).URL)
	want := `NODE  WHAT           RAIL  HCA                            AGE  EXPECTED                                        FOUND
a     degraded-link  3     mlx5_3:1                            symbol-errors 1.0e-12 per bit (IBTA)            3.1e-11 per bit
a     degraded-link  3     mlx5_3:1                            switch link-downs in 2 of 12 readings (heddle)  in 3 of 12 readings
a     degraded-link  3     mlx5_3                              pcie-width x16 (PCIe)                           x8
b     degraded-link        GPU-1 NVLink 3                      nvlink-replays in 2 of 12 readings (heddle)     in 4 of 12 readings
b     degraded-link        GPU-1                               pcie-width x16 (PCIe)                           x8
b     degraded-link        0000:06:00.0 NVSwitch link 30       sxid-fatal none (NVSwitch driver)               20034 LTSSM Fault Up
`
	if diff := cmp.Diff(want, out); diff != "" || !errors.Is(err, cli.ErrFindings) {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

func TestNothingIsWrong(t *testing.T) {
	out, _, err := clitest.Run(t, NewCommand(), "miscabled", "--topo-master", server(t, snapshot.Topology{}).URL)
	if out != "Every cable is where it belongs.\n" || err != nil {
		t.Errorf("error %v, output %q", err, out)
	}
}
