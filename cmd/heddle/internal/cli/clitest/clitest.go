// Package clitest runs heddle's commands in their tests.
package clitest

import (
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
	// Without any, cobra takes those of the test binary.
	c.SetArgs(append([]string{}, args...))
	err = c.ExecuteContext(t.Context())
	return out.String(), diagnostics.String(), err
}
