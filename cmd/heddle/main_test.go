package main

import (
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md")

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
		{"no command", nil, 2, "", "heddle: no command\nSee 'heddle --help' for usage\n"},
		{"unknown command", []string{"topology"}, 2, "", `heddle: unknown command "topology" for "heddle"`},
		{"a similar command", []string{"staus"}, 2, "", "Did you mean this?\n\tstatus\n"},
		{"a similar command of a command", []string{"gpu", "lst"}, 2, "", "Did you mean this?\n\tlist\n"},
		{"unknown flag", []string{"inspect", "--format"}, 2, "", "heddle: unknown flag: --format\nSee 'heddle inspect --help' for usage\n"},
		{"a similar flag", []string{"doctor", "--nodes=x"}, 2, "", "Did you mean this?\n\t--node"},
		{"an argument too few", []string{"gpu", "cordon", "n"}, 2, "", "Usage: heddle gpu cordon NODE GPU..."},
		{"unknown format", []string{"inspect", "-o", "xml"}, 2, "", "not one of table, wide, json, yaml, labels, resources, matrix, jsonpath=TEMPLATE\n"},
		{"no such file", []string{"inspect", "--machine", "none.json"}, 2, "", "none.json"},
		{"help", []string{"help"}, 0, "Take a GPU out for repair", ""},
		{"help flag", []string{"inspect", "--help"}, 0, "--machine host", ""},
		{"a file without its flag", []string{"inspect", "node.json"}, 2, "", `unknown command "node.json" for "heddle inspect"`},
		{"version", []string{"version"}, 0, "heddle dev\n", ""},
		{"options", []string{"options"}, 0, "--request-timeout", ""},
		{"a part of a machine", []string{"inspect", "--machine", sound, "-o", "jsonpath={.gpus[1].pci}"}, 0, "0000:43:00.0", ""},
		{"a long flag", []string{"inspect", "--machine", sound, "--output=labels"}, 0, "nvidia.com/gpu.count=8", ""},
		{"a sound machine", []string{"doctor", "--machine", sound}, 0, "dgx-h100: 0 problems", ""},
		{"an ill machine", []string{"doctor", "--machine", ill}, 1, "one-dead-port: 3 problems", ""},
		{"an ill machine as JSON", []string{"doctor", "--machine", ill, "-o", "json"}, 1, `"level": "problem"`, ""},
		{"an ill machine is shown", []string{"inspect", "--machine", ill}, 0, "PROBLEMS", ""},
		{"completion", []string{"completion", "bash"}, 0, "__start_heddle", ""},
		{"completion of a shell's name", []string{"__complete", "completion", ""}, 0, "powershell\n", ""},
		{"completion of a format", []string{"__complete", "topo", "export", "--format", ""}, 0, "slurm-block\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr strings.Builder
			stdout, diagnostics, err := clitest.Run(t, newCommand("heddle"), tt.args...)
			stderr.WriteString(diagnostics)
			code := cli.Exit(err, &stderr)
			if code != tt.code {
				t.Errorf("exit %d, want %d; stderr: %s", code, tt.code, stderr.String())
			}
			if !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", stdout, tt.stdout, stderr.String(), tt.stderr)
			}
			if tt.stdout == "" && stdout != "" || tt.stderr == "" && stderr.Len() > 0 && !strings.HasPrefix(tt.name, "completion of") {
				t.Errorf("unasked output: stdout %q, stderr %q", stdout, stderr.String())
			}
		})
	}
}

// TestReference keeps docs/reference/cli.md equal to the program's help.
func TestReference(t *testing.T) {
	const docs = "../../docs/reference/cli.md"
	old, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	const mark = "<!-- What follows is the program's help; go test ./cmd/heddle -update writes it. -->\n"
	head, _, ok := strings.Cut(string(old), mark)
	if !ok {
		t.Fatalf("%s lacks the line %s", docs, mark)
	}
	var b strings.Builder
	b.WriteString(head + mark)
	describe(t, &b, newCommand("heddle"))
	golden.Compare(t, docs, b.String(), *update)
}

// describe writes the help of a command and of those below it.
func describe(t *testing.T, b *strings.Builder, c *cobra.Command) {
	t.Helper()
	words := strings.Fields(c.CommandPath())[1:]
	out, _, err := clitest.Run(t, newCommand("heddle"), append(words, "--help")...)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		if len(line) > cli.Width+1 {
			t.Errorf("%s --help: %d columns: %s", c.CommandPath(), len(line)-1, line)
		}
	}
	b.WriteString("\n## " + c.CommandPath() + "\n\n```text\n" + strings.TrimSpace(out) + "\n```\n")
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			describe(t, b, sub)
		}
	}
}

// TestPluginOfKubectl has the name that users type.
func TestPluginOfKubectl(t *testing.T) {
	out, _, err := clitest.Run(t, newCommand("/usr/local/bin/kubectl-heddle"), "topo", "--help")
	if err != nil || !strings.Contains(out, "kubectl heddle topo COMMAND") {
		t.Errorf("error %v, output\n%s", err, out)
	}
}

// TestCompletionOfNodes asks the API server for names.
func TestCompletionOfNodes(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes" {
			t.Errorf("asked for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "gpu-1"}}, {"metadata": {"name": "gpu-2"}}]}`)
	}))
	defer server.Close()
	config := clitest.Kubeconfig(t, server.URL)
	t.Setenv("KUBECONFIG", config)
	for _, args := range [][]string{
		{"doctor", "--node", ""}, {"doctor", "taints", "--node", ""}, {"gpu", "list", ""}, {"gpu", "cordon", ""},
	} {
		out, _, err := clitest.Run(t, newCommand("heddle"), append([]string{"__complete"}, args...)...)
		if err != nil || !strings.HasPrefix(out, "gpu-1\ngpu-2\n") {
			t.Errorf("%v: error %v, output %q", args, err, out)
		}
	}
	out, _, err := clitest.Run(t, newCommand("heddle"), "__complete", "topo", "--context", "")
	if err != nil || !strings.HasPrefix(out, "c\n") {
		t.Errorf("contexts: error %v, output %q", err, out)
	}
}

// TestVersions asks an API server for its version and for the daemons.
func TestVersions(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Impersonate-User") != "ann" {
			t.Errorf("%s is not asked as ann", r.URL)
		}
		switch r.URL.Path {
		case "/version":
			_, _ = io.WriteString(w, `{"gitVersion": "v1.34.1"}`)
		case "/apis/apps/v1/namespaces/gpu/daemonsets":
			_, _ = io.WriteString(w, `{"items": [{"metadata": {"name": "a", "labels": {"app.kubernetes.io/version": "0.1.0"}}}]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	out, _, err := clitest.Run(t, newCommand("heddle"), "version", "--server", server.URL, "--as", "ann", "-n", "gpu", "--request-timeout", "1m")
	if want := "heddle dev\nDaemons: 0.1.0\nKubernetes: v1.34.1\n"; out != want || err != nil {
		t.Errorf("error %v, output %q, want %q", err, out, want)
	}
}
