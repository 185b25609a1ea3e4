//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// laptop is the CLI on a machine that has a kubeconfig and is no node.
type laptop struct{ heddle, kubeconfig string }

func (b *bed) laptop(t *testing.T) laptop {
	t.Helper()
	heddle, err := b.installer.Build(t.Context(), "heddle")
	if err != nil {
		t.Fatal(err)
	}
	return laptop{heddle: heddle, kubeconfig: b.Kubeconfig()}
}

// run gives what the CLI prints on stdout, and its exit code. Exit codes over
// 1, and anything on stderr, are no answers.
func (l laptop) run(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), l.heddle, args...)
	cmd.Env = []string{"KUBECONFIG=" + filepath.Join(t.TempDir(), "none") + ":" + l.kubeconfig}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		err, code = nil, 1
	}
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("heddle %s: %v\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), code
}
