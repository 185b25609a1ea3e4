package featurediscovery

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/programtest"
)

const dgx = "../../../../test/machines/dgx-h100.json"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, Name, "dev", New("dev"), args, stdout, stderr)
}

func TestRunOnce(t *testing.T) {
	programtest.Run(t, "heddle-feature-discovery", run, program.ErrUsage, []programtest.Case{
		{Name: "short interval", Args: []string{"--interval=1ms"}, Err: program.ErrUsage, Stderr: "less than 1s"},
		{Name: "cleanup of nothing", Args: []string{"--cleanup", "--dry-run"}, Err: program.ErrUsage, Stderr: "exclude"},
		{
			Name:   "dry run without an API server",
			Args:   []string{"--dry-run", "--machine", dgx, "--node-name", "n1"},
			Stdout: "+ nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\n",
		},
		{Name: "machine file cut in half", Args: []string{"--dry-run", "--machine", programtest.Half(t, machines.Dump(t, "dgx-h100"))}, Stderr: "half.json"},
		{Name: "bad configuration", Args: []string{"--dry-run", "--machine", dgx, "--config", programtest.Config(t, "mode: nativ\n")}, Stderr: "cluster-config:1"},
		{Name: "no API server", Args: []string{"--oneshot", "--machine", dgx}, Stderr: "--kubeconfig"},
	})
}

func TestOutputFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "heddle")
	args := []string{"--oneshot", "--machine", dgx, "--output-file", file, "--log-level", "error"}
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), args, &stdout, &stderr); err != nil {
		t.Fatal(err, stderr.String())
	}
	got, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(got), "\nnvidia.com/gpu.count=8\n") {
		t.Errorf("feature file %q, %v", got, err)
	}
}
