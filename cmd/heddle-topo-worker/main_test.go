package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/internal/program"
)

const h800 = "../../test/machines/h800-8ib-bond.json"

// configured is a folder with a configuration.
func configured(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{"version": "v1", "cluster-config": text} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name           string
		args           []string
		want           error
		stdout, stderr string // parts that must be there; stderr also in the error
	}{
		{name: "help", args: []string{"--help"}, want: flag.ErrHelp, stderr: "-cluster-manager-secret"},
		{name: "version", args: []string{"--version"}, stdout: "heddle-topo-worker dev"},
		{name: "unknown flag", args: []string{"--onshot"}, want: program.ErrUsage, stderr: "onshot"},
		{name: "stray argument", args: []string{"x"}, want: program.ErrUsage, stderr: `unexpected argument "x"`},
		{name: "bad log format", args: []string{"--log-format=xml"}, want: program.ErrUsage, stderr: "neither text nor json"},
		{name: "short interval", args: []string{"--interval=1ms"}, want: program.ErrUsage, stderr: "less than 1s"},
		{name: "dry run for ever", args: []string{"--dry-run"}, want: program.ErrUsage, stderr: "goes with --oneshot"},
		{
			name:   "dry run without an API server",
			args:   []string{"--oneshot", "--dry-run", "--machine", h800, "--node-name", "n1"},
			stdout: `"kind": "NodeTopology"`,
		},
		{name: "no machine file", args: []string{"--oneshot", "--dry-run", "--machine", "none.json"}, stderr: "none.json"},
		{
			name: "bad configuration", stderr: "topology.mode",
			args: []string{"--oneshot", "--dry-run", "--machine", h800, "--config", configured(t, "topology: {mode: x}\n")},
		},
		{name: "no API server", args: []string{"--oneshot", "--machine", h800}, stderr: "--kubeconfig"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "")
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), tt.args, &stdout, &stderr)
			said := stderr.String()
			if err != nil {
				said += err.Error()
			}
			if tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if tt.want == nil && (err == nil) != (tt.stderr == "") {
				t.Errorf("error %v", err)
			}
			if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(said, tt.stderr) {
				t.Errorf("stdout %q\nstderr and error %q", stdout.String(), said)
			}
		})
	}
}

// A replayed node gets its place from the static file.
func TestReplayWithAStaticFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "topology.yaml")
	text := "version: v1\nnodes:\n  n1:\n    path: [switchbox-1, dragonfly-2]\n    rails: {0: leaf-a, 7: leaf-h}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--oneshot", "--dry-run", "--machine", h800, "--node-name", "n1",
		"--config", configured(t, "topology: {staticFile: "+file+"}\n"),
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
