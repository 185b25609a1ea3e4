package topoworker

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/test/programtest"
)

const h800 = "../../../../test/machines/h800-8ib-bond.json"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, Name, "dev", New("dev"), args, stdout, stderr)
}

func TestRun(t *testing.T) {
	programtest.Run(t, "heddle-topo-worker", run, program.ErrUsage, []programtest.Case{
		{Name: "short interval", Args: []string{"--interval=1ms"}, Err: program.ErrUsage, Stderr: "less than 1s"},
		{
			Name:   "dry run without an API server",
			Args:   []string{"--dry-run", "--machine", h800, "--node-name", "n1"},
			Stdout: `"kind": "NodeTopology"`,
		},
		{Name: "no machine file", Args: []string{"--dry-run", "--machine", "none.json"}, Stderr: "none.json"},
		{
			Name: "bad configuration", Stderr: "topology.mode",
			Args: []string{"--dry-run", "--machine", h800, "--config", programtest.Config(t, "topology: {mode: x}\n")},
		},
		{Name: "no API server", Args: []string{"--machine", h800}, Stderr: "--kubeconfig"},
	})
}

// A replayed node gets its place from the static file.
func TestReplayWithAStaticFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "topology.yaml")
	text := "version: v1\nnodes:\n  n1:\n    path: [switchbox-1, dragonfly-2]\n    rails: {0: leaf-a, 7: leaf-h}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--dry-run", "--machine", h800, "--node-name", "n1",
		"--config", programtest.Config(t, "topology: {staticFile: "+file+"}\n"),
	}
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatal(err, stderr.String())
	}
	var nt v1alpha1.NodeTopology
	if err := json.Unmarshal(stdout.Bytes(), &nt); err != nil {
		t.Fatal(err)
	}
	var rails []string
	for _, r := range nt.Spec.Rails {
		if r.Switch != nil {
			rails = append(rails, strings.Join([]string{r.HCA, r.Switch.ID, string(r.Source)}, " "))
		}
	}
	if diff := cmp.Diff([]string{"mlx5_103 leaf-a static", "mlx5_104 leaf-h static"}, rails); diff != "" {
		t.Errorf("rails (-want +got):\n%s\n%s", diff, stdout.String())
	}
	if diff := cmp.Diff([]string{"switchbox-1", "dragonfly-2"}, nt.Spec.Path); diff != "" || len(nt.Spec.Skipped) != 0 {
		t.Errorf("path (-want +got):\n%s%+v", diff, nt.Spec.Skipped)
	}
}
