package hostfile_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// holdDir makes the test binary a process that holds a directory until it is killed.
const holdDir = "HEDDLE_TEST_HOLD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdDir); dir != "" {
		lock, err := hostfile.TakeLock(context.Background(), dir, discard())
		_, _ = fmt.Fprintln(os.Stdout, "held", err)
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		_, _ = fmt.Fprintln(os.Stdout, lock.Close())
		return
	}
	m.Run()
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func take(t *testing.T, dir string) *hostfile.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	lock, err := hostfile.TakeLock(ctx, dir, discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	return lock
}

// waits reports whether a directory cannot be had now.
func waits(t *testing.T, dir string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	lock, err := hostfile.TakeLock(ctx, dir, discard())
	if err == nil {
		_ = lock.Close()
		return false
	}
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v", err)
	}
	return true
}

func TestOneAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	first := take(t, dir)
	if !waits(t, dir) {
		t.Fatal("two have the directory")
	}
	second := make(chan error, 1)
	go func() {
		_, err := hostfile.TakeLock(t.Context(), dir, discard())
		second <- err
	}()
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// The kernel gives the directory of a process back that is killed.
func TestAKilledProcessHoldsNothing(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), holdDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "held <nil>\n" || err != nil {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	if !waits(t, dir) {
		t.Error("two processes have the directory")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // It was killed.
	take(t, dir)
}

// What is removed and made again is another directory: one that waited for the
// removed one has the new one, and not both have one each.
func TestRemovedMeanwhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first := take(t, dir)
	waiting := make(chan *hostfile.Lock, 1)
	go func() {
		lock, err := hostfile.TakeLock(t.Context(), dir, discard())
		if err != nil {
			t.Error(err)
		}
		waiting <- lock
	}()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	lock := <-waiting
	defer lock.Close()
	if !waits(t, dir) {
		t.Error("the one that waited has a directory that is not there")
	}
}

// Each removes the directory as the last thing, and never do two have it.
func TestRemovedByItsHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	var holders, most atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				lock, err := hostfile.TakeLock(t.Context(), dir, discard())
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n > 1 {
					most.Store(n)
				}
				<-time.After(50 * time.Microsecond)
				holders.Add(-1)
				_ = os.Remove(dir)
				_ = lock.Close()
			}
		})
	}
	all.Wait()
	if n := most.Load(); n > 0 {
		t.Errorf("%d had it at once", n)
	}
}

func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := hostfile.TakeLock(t.Context(), filepath.Join(file, "state"), discard()); err == nil {
		t.Error("a directory below a file")
	}
}
