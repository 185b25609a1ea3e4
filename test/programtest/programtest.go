// Package programtest runs heddle's daemons as functions, and compares what they
// print with what they should. It is for their tests.
package programtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Case is one start of a program that ends by itself.
type Case struct {
	Name string
	Args []string
	// Env is added to an environment without a cluster.
	Env map[string]string
	// Err is what the error is; nil is none if Stderr is empty, and else any.
	Err error
	// Stdout and Stderr are parts that must be there; that of stderr may be in
	// the error.
	Stdout, Stderr string
}

// common are the cases that are the same for every daemon.
func common(binary string, usage error) []Case {
	return []Case{
		{Name: "version", Args: []string{"--version"}, Stdout: binary + " dev"},
		{Name: "help", Args: []string{"--help"}, Err: flag.ErrHelp, Stderr: "-log-format"},
		{Name: "unknown flag", Args: []string{"--onshot"}, Err: usage, Stderr: "onshot"},
		{Name: "stray argument", Args: []string{"x"}, Err: usage, Stderr: `unexpected argument "x"`},
		{Name: "bad log format", Args: []string{"--log-format=xml"}, Err: usage, Stderr: "neither text nor json"},
		{Name: "bad log level", Args: []string{"--log-level=loud"}, Err: usage, Stderr: "log-level"},
	}
}

// Run runs a daemon's own cases and those that all daemons have; usage is its
// error for wrong flags.
func Run(
	t *testing.T, binary string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error,
	usage error, own []Case,
) {
	t.Helper()
	RunOnly(t, run, slices.Concat(common(binary, usage), own))
}

// RunOnly runs cases of a program.
func RunOnly(
	t *testing.T, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error, cases []Case,
) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			for _, key := range []string{"KUBECONFIG", "NODE_NAME", "POD_NAME", "POD_NAMESPACE"} {
				t.Setenv(key, "")
			}
			for _, key := range slices.Sorted(maps.Keys(c.Env)) {
				t.Setenv(key, c.Env[key])
			}
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), c.Args, &stdout, &stderr)
			printed := stderr.String()
			if err != nil {
				printed += err.Error()
			}
			if c.Err != nil && !errors.Is(err, c.Err) || c.Err == nil && (err == nil) != (c.Stderr == "") {
				t.Errorf("error %v, want %v", err, c.Err)
			}
			if !strings.Contains(stdout.String(), c.Stdout) || !strings.Contains(printed, c.Stderr) {
				t.Errorf("stdout %q\nstderr and error %q", stdout.String(), printed)
			}
		})
	}
}

// Config is a directory with a configuration, for --config.
func Config(t *testing.T, cluster string) string {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{"version": "v1", "cluster-config": cluster} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Half is the file half.json, the first half of a text.
func Half(t *testing.T, text []byte) string {
	t.Helper()
	half := filepath.Join(t.TempDir(), "half.json")
	if err := os.WriteFile(half, text[:len(text)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	return half
}
