package topo

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// tested serves a tree of one group with four ports: a good one, a slow one, one without a test, and one of another
// group's node on the group's leaf.
func tested(t *testing.T) *httptest.Server {
	t.Helper()
	at := metav1.NewTime(longAgo)
	port := func(node string, test *v1alpha1.LinkResult) snapshot.Port {
		return snapshot.Port{Node: node, Rail: v1alpha1.Rail{
			Rail: 3, HCA: "mlx5_0", Port: 1, Switch: &v1alpha1.Switch{ID: "s", Name: "leaf-3"}, SwitchPort: "7",
		}, Test: test}
	}
	foreign := port("n9", &v1alpha1.LinkResult{Gbps: 1, Time: at})
	foreign.Foreign = true
	ports := snapshot.PortList{Ports: []snapshot.Port{
		port("n1", &v1alpha1.LinkResult{Gbps: 385, ExpectedGbps: 388, LatencyNanoseconds: 1960, Time: at}),
		port("n2", &v1alpha1.LinkResult{
			Gbps: 41, ExpectedGbps: 388, LatencyNanoseconds: 2040, Time: at,
			Fault: "cable", What: "bandwidth", Value: "40 Gb/s", Limit: "304 Gb/s",
		}),
		port("n3", nil), foreign,
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = sample()
		switch {
		case r.URL.Path == "/v1/ports" && r.URL.Query().Get("group") == "dragonfly-1":
			answer = ports
		case r.URL.Path != "/v1/topology":
			http.Error(w, "group not found", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func TestBandwidth(t *testing.T) {
	const want = `NODE  HCA       RAIL  SWITCH    GBIT/S  EXPECTED  LATENCY  AGE  FAULT
n1    mlx5_0:1  3     leaf-3 7  385     388       2.0us    10d
n2    mlx5_0:1  3     leaf-3 7  41      388       2.0us    10d  cable: bandwidth 40 Gb/s, limit 304 Gb/s
`
	for _, args := range [][]string{{"bandwidth"}, {"bandwidth", "dragonfly-1"}} {
		out, _, err := clitest.Run(t, NewCommand(), append(args, "--topo-master", tested(t).URL)...)
		if diff := cmp.Diff(want, out); diff != "" || !errors.Is(err, cli.ErrFindings) {
			t.Errorf("%v: %v (-want +got):\n%s", args, err, diff)
		}
	}
	if _, _, err := clitest.Run(t, NewCommand(), "bandwidth", "x", "--topo-master", tested(t).URL); err == nil {
		t.Error("no error of an unknown group")
	}
}

func TestGroup(t *testing.T) {
	var m Master
	var nodes []string
	c := &cobra.Command{Use: "group", RunE: func(c *cobra.Command, _ []string) (err error) {
		nodes, err = m.Group(c, "dragonfly-1")
		return err
	}}
	m.Register(c)
	if _, _, err := clitest.Run(t, c, "--topo-master", tested(t).URL); err != nil || !slices.Equal(nodes, []string{"n1", "n2", "n3"}) {
		t.Errorf("nodes %v, %v", nodes, err)
	}
}
