// Package clitest runs heddle's commands in their tests.
package clitest

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Run runs a command with arguments, on a machine that names no Node.
func Run(t *testing.T, c *cobra.Command, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	t.Setenv("NODE_NAME", "")
	var out, diagnostics strings.Builder
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetOut(&out)
	c.SetErr(&diagnostics)
	// Without arguments cobra uses the arguments of the test binary.
	c.SetArgs(append([]string{}, args...))
	err = c.ExecuteContext(t.Context())
	return out.String(), diagnostics.String(), err
}

// RunOn runs a command with a kubeconfig for an API server that lives as long as the command.
func RunOn(t *testing.T, server http.Handler, c *cobra.Command, args ...string) (stdout string, err error) {
	t.Helper()
	ts := httptest.NewServer(server)
	defer ts.Close()
	stdout, _, err = Run(t, c, append(args, "--kubeconfig", Kubeconfig(t, ts.URL))...)
	return stdout, err
}

// Kubeconfig returns a file for an API server, with the context "c".
func Kubeconfig(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + url + "}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
