package main

import (
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

// TestExitCodes runs the program as a shell does.
func TestExitCodes(t *testing.T) {
	const sound, ill = "../../test/machines/dgx-h100.json", "../../test/machines/one-dead-port.json"
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"no command", nil, 2, "", "heddle: no command\nTry: heddle help\n"},
		{"unknown command", []string{"topology"}, 2, "", "heddle: \"topology\" is no command\nTry: heddle help\n"},
		{"unknown flag", []string{"inspect", "--format"}, 2, "", "flag provided but not defined: -format\nTry: heddle help inspect\n"},
		{"unknown format", []string{"inspect", "-o", "yaml"}, 2, "", "-o yaml: not one of table, json, labels, resources, matrix\n"},
		{"no such file", []string{"inspect", "--machine", "none.json"}, 1, "", "none.json"},
		{"help", []string{"help"}, 0, "heddle config validate DIR", ""},
		{"help about a command", []string{"help", "doctor"}, 0, "heddle doctor: what is wrong here", ""},
		{"help about card", []string{"help", "card", "cordon"}, 0, "heddle card cordon NODE UUID", ""},
		{"help flag", []string{"inspect", "--help"}, 0, "--machine host", ""},
		{"help about a subcommand", []string{"help", "config", "validate"}, 0, "heddle config validate DIR", ""},
		{"help flag after a word", []string{"config", "validate", "--help"}, 0, "heddle config validate DIR", ""},
		{"a flag after its command's argument", []string{"config", "validate", ".", "--strict"}, 2, "", "not defined: -strict\nTry: heddle help config\n"},
		{"a file without its flag", []string{"inspect", "node.json"}, 2, "", "inspect: unexpected argument \"node.json\"\n"},
		{"help about a part of doctor", []string{"help", "doctor", "taints"}, 0, "who could not come back", ""},
		{"version", []string{"version"}, 0, "heddle dev\n", ""},
		{"matrix", []string{"inspect", "--machine", sound, "-o", "matrix"}, 0, "NV18", ""},
		{"a sound machine", []string{"doctor", "--machine", sound}, 0, "dgx-h100: 0 problems", ""},
		{"an ill machine", []string{"doctor", "--machine", ill}, 1, "one-dead-port: 3 problems", ""},
		{"an ill machine is shown", []string{"inspect", "--machine", ill}, 0, "PROBLEMS", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NODE_NAME", "")
			var stdout, stderr strings.Builder
			code := cli.Exit(run(t.Context(), tt.args, &stdout, &stderr), &stderr)
			if code != tt.code {
				t.Errorf("exit %d, want %d; stderr: %s", code, tt.code, stderr.String())
			}
			if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", stdout.String(), tt.stdout, stderr.String(), tt.stderr)
			}
			if tt.stdout == "" && stdout.Len() > 0 || tt.stderr == "" && stderr.Len() > 0 {
				t.Errorf("unasked output: stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
}
