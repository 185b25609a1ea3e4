package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// A program that is current is not linked again, and one that was placed stays as it is when
// the next version is linked.
func TestProgramsAreKept(t *testing.T) {
	kept, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	info := func(file string) os.FileInfo {
		t.Helper()
		i, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	linked := func(version string) os.FileInfo {
		t.Helper()
		l, end, err := newLinker("../..", kept, version)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		if err := programs(t.Context(), l, runtime.GOARCH, filepath.Join(out, version), []string{mountsHook}); err != nil {
			t.Fatal(err)
		}
		return info(l.program(runtime.GOARCH, mountsHook))
	}
	first := linked("one")
	if again := linked("one"); !os.SameFile(first, again) {
		t.Error("a program that is current was linked again")
	}
	if second := linked("two"); os.SameFile(first, second) {
		t.Error("the next version is the same file")
	}
	if placed := info(filepath.Join(out, "one", mountsHook)); !os.SameFile(first, placed) {
		t.Error("the program that was placed is not the one that was linked")
	}
}

// The C library of a distribution whose libraries are all in /usr is found where programs
// name their loader.
func TestTrimLinksDirectories(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"usr/lib64/ld-linux-x86-64.so.2", "usr/lib/libc.so.6", "lib/here", "usr/share/ca-certificates/mozilla/a.crt",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "./base.sh", "--trim", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string]bool{"lib64/ld-linux-x86-64.so.2": true, "lib/here": true, "lib/libc.so.6": false} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
}
