package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
)

func TestEveryFaultIsPrintedWithItsPlace(t *testing.T) {
	for _, tt := range []struct {
		name   string
		files  map[string]string
		places []string
	}{
		{"keys and words", map[string]string{
			"version": "v1", "cluster-config": "mode: fast\nusages: inference\n", "nodes-config": "- nodeName: a\n  mode: 3\n",
		}, []string{"cluster-config:1: mode: ", "cluster-config:2: usages: ", "nodes-config:2: [0].mode: "}},
		{"rules", map[string]string{
			"version": "v1", "cluster-config": "labels:\n- key: ring\n  value: '1 + 1'\n- key: ring\n  value: '\"ff\"'\n",
		}, []string{"cluster-config:3: labels[0].value: ", "cluster-config:4: labels[1].key: "}},
		{"no YAML", map[string]string{"version": "v1", "cluster-config": "mode: [native\n"}, []string{"cluster-config:"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, _, err := clitest.Run(t, configCommand(), "validate", dir)
			if !errors.Is(err, cli.ErrFindings) {
				t.Fatalf("error %v, want findings", err)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != len(tt.places) {
				t.Fatalf("%d faults, want %d:\n%s", len(lines), len(tt.places), out)
			}
			for _, place := range tt.places {
				if !strings.Contains(out, filepath.Join(dir, place)) {
					t.Errorf("no %s in the output:\n%s", place, out)
				}
			}
		})
	}
}

func TestValidConfiguration(t *testing.T) {
	out, _, err := clitest.Run(t, configCommand(), "validate", "../../test/machines/h800-8ib-bond.config")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out, ": valid: 3 label rules and 1 RDMA resource for every node, 0 overrides\n") {
		t.Errorf("output %q", out)
	}
}

func TestMissingDirectoryIsNoFinding(t *testing.T) {
	_, _, err := clitest.Run(t, configCommand(), "validate", filepath.Join(t.TempDir(), "none"))
	if err == nil || errors.Is(err, cli.ErrFindings) {
		t.Errorf("error %v, want that of reading", err)
	}
}
