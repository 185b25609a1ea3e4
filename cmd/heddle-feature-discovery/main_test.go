package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/cmd/internal/program"
)

const dgx = "../../test/machines/dgx-h100.json"

func TestRunOnce(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "half.json")
	whole, err := os.ReadFile(dgx)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config")
	if err := os.Mkdir(config, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"version": "v1", "cluster-config": "mode: nativ\n"} {
		if err := os.WriteFile(filepath.Join(config, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name           string
		args           []string
		want           error
		stdout, stderr string // parts that must be there; stderr also in the error
	}{
		{name: "help", args: []string{"--help"}, want: flag.ErrHelp, stderr: "-output-file"},
		{name: "version", args: []string{"--version"}, stdout: "heddle-feature-discovery dev"},
		{name: "unknown flag", args: []string{"--onshot"}, want: program.ErrUsage, stderr: "onshot"},
		{name: "stray argument", args: []string{"x"}, want: program.ErrUsage, stderr: `unexpected argument "x"`},
		{name: "bad log format", args: []string{"--log-format=xml"}, want: program.ErrUsage, stderr: "neither text nor json"},
		{name: "short interval", args: []string{"--interval=1ms"}, want: program.ErrUsage, stderr: "less than 1s"},
		{name: "cleanup of nothing", args: []string{"--cleanup", "--dry-run"}, want: program.ErrUsage, stderr: "exclude"},
		{
			name:   "dry run without an API server",
			args:   []string{"--oneshot", "--dry-run", "--machine", dgx, "--node-name", "n1"},
			stdout: "+ nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\n",
		},
		{name: "machine file cut in half", args: []string{"--oneshot", "--dry-run", "--machine", bad}, stderr: "half.json"},
		{name: "bad configuration", args: []string{"--oneshot", "--dry-run", "--machine", dgx, "--config", config}, stderr: "cluster-config:1"},
		{name: "no API server", args: []string{"--oneshot", "--machine", dgx}, stderr: "--kubeconfig"},
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
			if tt.want == nil && tt.stderr == "" && err != nil {
				t.Errorf("error %v", err)
			}
			if tt.want == nil && tt.stderr != "" && err == nil {
				t.Error("no error")
			}
			if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(said, tt.stderr) {
				t.Errorf("stdout %q\nstderr and error %q", stdout.String(), said)
			}
		})
	}
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
