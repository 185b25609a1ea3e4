package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A share is one container's until its process has ended.
func TestTakeAlone(t *testing.T) {
	proc, file := t.TempDir(), filepath.Join(t.TempDir(), "share.json")
	process := func(pid int, state, start string) {
		dir := filepath.Join(proc, fmt.Sprint(pid))
		text := fmt.Sprintf("%d (a b) %s%s %s 0\n", pid, state, strings.Repeat(" 0", 18), start)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	take := func(pid int) error {
		return takeAlone(proc, strings.NewReader(fmt.Sprintf(`{"pid": %d}`, pid)), []string{file})
	}
	process(7, "S", "100")
	process(8, "S", "200")
	for range 2 {
		if err := take(7); err != nil {
			t.Error(err)
		}
	}
	if err := take(8); err == nil || !strings.Contains(err.Error(), "another container has the share (process 7)") {
		t.Errorf("while the first runs: %v", err)
	}
	process(7, "Z", "100")
	if err := take(8); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
	process(8, "S", "300") // Another process has its number.
	process(9, "S", "400")
	if err := take(9); err != nil {
		t.Errorf("after the second is gone: %v", err)
	}
	if err := os.WriteFile(file, []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := take(9); err != nil {
		t.Errorf("a file that says nothing: %v", err)
	}
	if err := take(10); err == nil {
		t.Error("a process that is gone took it")
	}
}

// The kernel's own files are read as they are.
func TestStartOfAProcess(t *testing.T) {
	own, err := startOf("/proc", os.Getpid())
	first, errFirst := startOf("/proc", os.Getppid())
	if ticks, errNumber := strconv.Atoi(own); err != nil || errFirst != nil || errNumber != nil || ticks <= 0 || first == own {
		t.Errorf("this process %q, %v; its parent %q, %v", own, err, first, errFirst)
	}
}
