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
	"github.com/heddle-dev/heddle/topo/suspect"
)

func TestSuspects(t *testing.T) {
	evidence := []suspect.Evidence{
		{Gang: "ai/a", Reason: "exit code 1", Of: 2, Time: longAgo}, {Gang: "ai/b", Reason: "node not ready", Of: 1, Time: longAgo},
	}
	for _, tt := range []struct {
		name   string
		answer suspect.Answer
		want   string
	}{
		{"none", suspect.Answer{}, "No node is suspect.\n"},
		{"in doubt", suspect.Answer{Suspects: []suspect.Place{{Kind: "node", Name: "n1", State: suspect.Doubt, Evidence: evidence}}}, `STATE  KIND  NAME  GANGS  LAST  EVIDENCE
Doubt  node  n1    2      10d   ai/a: exit code 1, one of 2 nodes; ai/b: node not ready
`},
		{"suspect", suspect.Answer{Suspects: []suspect.Place{{Kind: "group", Name: "leaf-1", State: suspect.Suspect, Evidence: evidence}}}, `STATE    KIND   NAME    GANGS  LAST  EVIDENCE
Suspect  group  leaf-1  2      10d   ai/a: exit code 1, one of 2 nodes; ai/b: node not ready
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/suspects" {
					t.Errorf("asked for %s", r.URL)
				}
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(tt.answer); err != nil {
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
