package topoworker

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/test/docs"
	"github.com/heddle-dev/heddle/test/nodeapi"
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

func TestReleaseFollowsTheNode(t *testing.T) {
	api := nodeapi.New(t, "n1")
	r := &released{nodesync.NewWatch(api.Client(), "n1"), host.NewRelease()}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, one := range []runner{r.node, r} {
		wg.Go(func() {
			if err := one.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	defer wg.Wait()
	defer cancel()
	for _, step := range []struct {
		name, text string
		released   bool
	}{
		{"asked for", `{"until":"2999-01-01T00:00:00Z"}`, true},
		{"a typo", "10m", false},
		{"again", `{"until":"2999-01-02T00:00:00Z"}`, true},
		{"over", `{"until":"2026-01-01T00:00:00Z"}`, false},
	} {
		api.EditNode(func(n *corev1.Node) { n.Annotations = map[string]string{wellknown.GPURelease: step.text} })
		tick, late := time.NewTicker(time.Millisecond), time.After(20*time.Second)
		for r.release.Active() != step.released {
			select {
			case <-tick.C:
			case <-late:
				t.Fatalf("%s: released is %t", step.name, !step.released)
			}
		}
		tick.Stop()
	}
}

var update = flag.Bool("update", false, "write "+docs.Observability)

func TestDocumentedMetrics(t *testing.T) {
	o := options{dryRun: true, Host: program.Host{Options: host.Options{NodeName: "n1"}, Machine: h800}}
	p, err := wire(&o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	docs.Section(t, "../../../..", docs.Observability, "heddle-topo-worker", docs.Metrics(t, p.registry), *update)
}
