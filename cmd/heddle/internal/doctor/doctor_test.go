package doctor

import (
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the outputs in docs/use/why-pending.md")

const (
	machines = "../../../../test/machines/"
	docs     = "../../../../docs/use/why-pending.md"
)

func doctor(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, _, err := clitest.Run(t, NewCommand(), args...)
	return out, err
}

// TestOutputsInTheDocs runs every `heddle doctor` that docs/use/why-pending.md
// shows, and compares the output with the document.
func TestOutputsInTheDocs(t *testing.T) {
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	const open, end = "```console\n$ heddle doctor ", "```\n"
	parts := strings.Split(string(b), open)
	if len(parts) < 2 {
		t.Fatal("no examples")
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
	golden.Compare(t, docs, fresh, *update)
}

func TestExitCodeReportsProblems(t *testing.T) {
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

// The objects have lower-case keys, and lists that are never null.
func TestObjects(t *testing.T) {
	node := h20Node()
	delete(node.Labels, "nvidia.com/gpu.product")
	config := serve(t, node, nil)
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"a machine without GPUs", []string{"--machine", machines + "amd-epyc-no-gpu.json", "-o", "json"}, `{
  "node": "amd-epyc-no-gpu",
  "resources": [
    {
      "name": "nvidia.com/gpu",
      "count": 0,
      "devices": 0,
      "healthy": 0,
      "reason": "NVML is absent: no libnvidia-ml.so.1"
    },
`},
		{"a sound machine as YAML", []string{"--machine", machines + "dgx-h100.json", "-o", "yaml"}, `findings: []
node: dgx-h100
resources:
- count: 8
  devices: 8
  healthy: 8
  name: nvidia.com/gpu
`},
		{"a Node alone", []string{"--node", "gpu-1", "--kubeconfig", config, "-o", "json"}, `{
  "node": "gpu-1",
  "resources": [],
`},
		{"a taint that is none", []string{"taints", "--if", "gpuProduct", "--node", "gpu-1", "--kubeconfig", config, "-o", "json"}, `{
  "taint": null,
  "pods": []
}
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, _ := doctor(t, tt.args...)
			if got := out[:min(len(out), len(tt.want))]; got != tt.want {
				t.Errorf("output begins with (-want +got):\n%s", cmp.Diff(tt.want, got))
			}
		})
	}
}

func TestBrokenConfigurationIsReported(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cluster-config"), []byte("mode: fast\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := doctor(t, "--machine", machines+"dgx-h100.json", "--config", dir)
	if err == nil || !strings.Contains(err.Error(), "cluster-config:1") {
		t.Errorf("error %v, want one that names the file and the line", err)
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	config := serve(t, h20Node(), nil)
	for _, args := range [][]string{
		{"taints"},
		{"taints", "--if", "gpuProduct"},
		{"taints", "--if", "gpuproduct", "--node", "gpu-1", "--kubeconfig", config},
	} {
		if _, err := doctor(t, args...); cli.Exit(err, io.Discard) != cli.ExitFailed {
			t.Errorf("%v: error %v, want one", args, err)
		}
	}
}
