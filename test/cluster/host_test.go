//go:build linux

package cluster

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStopSparesReusedPID: a record whose start time differs is another process.
func TestStopSparesReusedPID(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	if err := savePID(file, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	p, ok := loadPID(file)
	if !ok || !p.alive() {
		t.Fatalf("record is %+v, %t", p, ok)
	}
	other := p
	other.start--
	if err := other.stop(t.Context(), unix.SIGKILL, 0); err != nil || !p.alive() {
		t.Fatalf("a process with another start time was stopped (%v)", err)
	}
	if err := p.stop(t.Context(), unix.SIGTERM, time.Second); err != nil {
		t.Fatal(err)
	}
	if p.alive() {
		t.Error("still alive") // It is a zombie until Wait, which does not count.
	}
	_ = cmd.Wait()
}
