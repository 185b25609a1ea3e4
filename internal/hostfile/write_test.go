package hostfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

func TestWriteReplaces(t *testing.T) {
	for _, durability := range []hostfile.Durability{hostfile.Quick, hostfile.Durable} {
		path := filepath.Join(t.TempDir(), "missing", "spec.json")
		for _, content := range []string{"one", "two"} {
			if err := hostfile.Write(path, []byte(content), 0o644, durability); err != nil {
				t.Fatal(err)
			}
			if !hostfile.Holds(path, []byte(content)) {
				t.Errorf("the file does not hold %q", content)
			}
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o644 {
			t.Errorf("mode %v", info.Mode())
		}
		only(t, filepath.Dir(path), "spec.json")
	}
}

// A CDI cache loads its directory again at every rename in it.
func TestWriteLeavesSameContentAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spec.json")
	if err := hostfile.Write(path, []byte("same"), 0o644, hostfile.Quick); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := hostfile.Write(path, []byte("same"), 0o644, hostfile.Quick); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("same content was written again")
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	// A rename cannot replace a directory by a file.
	path := filepath.Join(dir, "spec.json")
	if err := os.Mkdir(path, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := hostfile.Write(path, []byte("one"), 0o644, hostfile.Quick); err == nil {
		t.Error("a directory was replaced by a file")
	}
	only(t, dir, "spec.json")
	if err := hostfile.Write(filepath.Join(dir, "spec.json", "a", "b"), nil, 0o644, hostfile.Quick); err != nil {
		t.Errorf("below a directory that can be made: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := hostfile.Write(filepath.Join(file, "b"), nil, 0o644, hostfile.Quick); err == nil {
		t.Error("a file has no files in it")
	}
}

func TestIsTemp(t *testing.T) {
	for name, want := range map[string]bool{
		".heddle-123.tmp": true, ".heddle-123": false, "heddle.json": false, "x.tmp": false,
	} {
		if hostfile.IsTemp(name) != want {
			t.Errorf("%s: want %t", name, want)
		}
	}
}

func only(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("%s has %v, want only %s", dir, entries, name)
	}
}

// A clock that jumps makes a sweep take a file that was made just now.
func TestProbeBesideSweep(t *testing.T) {
	dir, done := t.TempDir(), make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			if err := hostfile.Probe(dir, 1<<20); err != nil {
				t.Errorf("room is short: %v", err)
				return
			}
		}
	}()
	for {
		select {
		case <-done:
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			return
		default:
		}
		temps, err := filepath.Glob(filepath.Join(dir, ".heddle-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, temp := range temps {
			_ = os.Remove(temp)
		}
	}
}
