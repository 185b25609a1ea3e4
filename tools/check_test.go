// Package tools tests the scripts of this folder.
package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// goWrapper is a go that writes down what it was asked for, and where; it runs no tools.
const goWrapper = `#!/bin/sh
echo "${PWD#"$REPOSITORY"}: $*" >> "$ASKED"
case $1 in tool|run) exit 0 ;; esac
exec "$REAL_GO" "$@"
`

// TestCheck changes a file of every kind of package, and takes away packages and files.
func TestCheck(t *testing.T) {
	repository, bin := t.TempDir(), t.TempDir()
	const tests = "import \"testing\"\n\nfunc Test(t *testing.T) {}\n"
	write(t, repository, map[string]string{
		"go.mod": "module example.com/heddle\n\ngo 1.25\n",
		"a/a.go": "package a\n", "a/a_test.go": "package a\n\n" + tests, "a/gone.go": "package a\n",
		"gone/gone.go":                "package gone\n",
		"same/same.go":                "package same\n",
		"test/e2e/a_test.go":          "//go:build e2e && linux\n\npackage e2e\n\n" + tests,
		"test/vm/rdma/a.go":           "//go:build vmguest && linux\n\npackage rdma\n",
		"test/peers/x/go.mod":         "module example.com/x\n\ngo 1.25\n",
		"test/peers/x/in/in.go":       "package in\n",
		"test/cluster/build/y/go.mod": "module example.com/y\n\ngo 1.25\n",
		"test/cluster/build/y/y.go":   "package y\n",
		"cmd/scheduler/go.mod":        "module example.com/scheduler\n\ngo 1.25\n",
		"cmd/scheduler/main.go":       "package main\n\nfunc main() {}\n",
	})
	script, err := os.ReadFile("check.sh")
	if err != nil {
		t.Fatal(err)
	}
	write(t, repository, map[string]string{"tools/check.sh": string(script)})
	write(t, bin, map[string]string{"go": goWrapper})
	run(t, repository, nil, "git", "init", "-q")
	run(t, repository, nil, "git", "add", ".")
	run(t, repository, nil, "git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "first")

	change(t, repository, "a/a_test.go", "test/e2e/a_test.go", "test/vm/rdma/a.go", "test/peers/x/in/in.go",
		"test/cluster/build/y/y.go", "cmd/scheduler/main.go")
	write(t, repository, map[string]string{"new/new.go": "package new\n"})
	if got, want := check(t, repository, bin), []string{
		": vet -tags e2e,vmguest,grpcnotrace ./a ./new ./test/e2e ./test/vm/rdma",
		": test example.com/heddle/a example.com/heddle/new",
		": tool lint ./a ./new ./test/e2e ./test/vm/rdma",
		"/cmd/scheduler: vet ./...", "/cmd/scheduler: test ./...", "/cmd/scheduler: tool lint ./...",
		"/test/peers/x: vet ./...", "/test/peers/x: test ./...",
	}; !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}

	run(t, repository, nil, "git", "checkout", "-q", ".")
	for _, path := range []string{"new/new.go", "a/gone.go", "gone"} {
		if err := os.RemoveAll(filepath.Join(repository, path)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := check(t, repository, bin), []string{
		": vet -tags e2e,vmguest,grpcnotrace ./a", ": test example.com/heddle/a", ": tool lint ./a",
	}; !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

// check runs the script, and returns what it asked go for beside lists of packages.
func check(t *testing.T, repository, bin string) (asked []string) {
	t.Helper()
	goProgram, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "asked")
	run(t, repository, []string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "REAL_GO=" + goProgram, "REPOSITORY=" + repository, "ASKED=" + log,
		"BASE=HEAD", "GOFLAGS=", "GOWORK=off",
	}, "tools/check.sh")
	lines, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		before, rest, isLint := strings.Cut(strings.TrimSpace(line), "-modfile=")
		_, packages, _ := strings.Cut(rest, "--new-from-rev=HEAD ")
		switch {
		case isLint:
			asked = append(asked, before+"lint "+packages)
		case !strings.Contains(before, ": list "):
			asked = append(asked, before)
		}
	}
	return asked
}

func change(t *testing.T, repository string, paths ...string) {
	t.Helper()
	for _, path := range paths {
		content, err := os.ReadFile(filepath.Join(repository, path))
		if err != nil {
			t.Fatal(err)
		}
		write(t, repository, map[string]string{path: string(content) + "\n// Changed.\n"})
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func run(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
