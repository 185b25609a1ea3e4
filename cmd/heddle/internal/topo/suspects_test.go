package topo

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
	"github.com/heddle-dev/heddle/topo/suspect"
)

func TestSuspects(t *testing.T) {
	evidence := []suspect.Evidence{
		{Gang: "ai/a", Reason: "exit code 1", Of: 2, Time: longAgo}, {Gang: "ai/b", Reason: "node not ready", Of: 1, Time: longAgo},
	}
	cables := []fabric.Finding{
		{Kind: fabric.Degraded, Node: "n1", HCA: "mlx5_3", Port: 1, Rail: 3, What: "bandwidth", Limit: "310 Gb/s (heddle fabric test: cable)", Value: "41 Gb/s"},
		{Kind: fabric.Unseen, Node: "n3", HCA: "mlx5_0", Port: 1},
		{Kind: fabric.Dead, Node: "n2", HCA: "mlx5_0", Port: 1},
	}
	for _, tt := range []struct {
		name     string
		answer   suspect.Answer
		findings []fabric.Finding
		want     string
	}{
		{"none", suspect.Answer{}, nil, "No node is suspect.\n"},
		{"in doubt", suspect.Answer{Suspects: []suspect.Place{{Kind: "node", Name: "n1", State: suspect.Doubt, Evidence: evidence}}}, nil, `STATE  KIND  NAME  GANGS  LAST  EVIDENCE                                                 NEXT
Doubt  node  n1    2      10d   ai/a: exit code 1, one of 2 nodes; ai/b: node not ready  heddle fabric test --nodes n1 --image IMAGE
`},
		{"suspect", suspect.Answer{Suspects: []suspect.Place{{Kind: "group", Name: "leaf-1", State: suspect.Suspect, Evidence: evidence}}}, nil, `STATE    KIND   NAME    GANGS  LAST  EVIDENCE                                                 NEXT
Suspect  group  leaf-1  2      10d   ai/a: exit code 1, one of 2 nodes; ai/b: node not ready  heddle fabric test --group leaf-1 --image IMAGE
`},
		{"gangs and cables", suspect.Answer{Suspects: []suspect.Place{{Kind: "node", Name: "n1", State: suspect.Doubt, Score: 1.5, Evidence: evidence[:1]}}}, cables, `STATE    KIND  NAME  GANGS  LAST  EVIDENCE                                                                                                                     NEXT
Suspect  node  n1    1      10d   ai/a: exit code 1, one of 2 nodes; mlx5_3 port 1 (rail 3) is degraded: bandwidth below 310 Gb/s (heddle fabric test: cable)  heddle doctor --node n1
Suspect  node  n2    0      -     mlx5_0 port 1 (rail 0) has no active link                                                                                    heddle doctor --node n2
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var answer any = snapshot.Topology{Findings: tt.findings}
				if r.URL.Path == "/v1/suspects" {
					answer = tt.answer
				}
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(answer); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(server.Close)
			out, _, err := clitest.Run(t, NewCommand(), "suspects", "--topo-master", server.URL)
			if suspect := strings.Contains(tt.want, "Suspect "); errors.Is(err, cli.ErrFindings) != suspect {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(tt.want, out); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}
