package config_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
)

// watched is a directory as the kubelet mounts a ConfigMap, and its watcher.
func watched(t *testing.T) (dir string, w *config.Watcher) {
	t.Helper()
	dir = t.TempDir()
	swap(t, dir, "1", "mode: native")
	w, err := config.NewWatcher(dir, &rule.CEL{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return dir, w
}

// swap does what the kubelet does: a new directory, and a rename of ..data.
func swap(t *testing.T, dir, generation, cluster string) {
	t.Helper()
	versioned := "..2026_" + generation
	if err := os.Mkdir(filepath.Join(dir, versioned), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, versioned), "version", "v1")
	write(t, filepath.Join(dir, versioned), "cluster-config", cluster)
	link := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(versioned, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"version", "cluster-config"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
}

func wait(t *testing.T, w *config.Watcher) {
	t.Helper()
	select {
	case <-w.Changed():
	case <-t.Context().Done():
		t.Fatal("no change")
	}
}

func TestWatcherKeepsTheLastGood(t *testing.T) {
	dir, w := watched(t)
	if w.Current().Cluster.Mode != config.ModeNative || w.Err() != nil {
		t.Fatalf("start: %+v, %v", w.Current(), w.Err())
	}
	swap(t, dir, "2", "mode: sgpu")
	wait(t, w)
	if w.Current().Cluster.Mode != config.ModeSGPU || w.Err() != nil {
		t.Errorf("after a change: %s, %v", w.Current().Cluster.Mode, w.Err())
	}
	swap(t, dir, "3", "mode: sgpuu")
	wait(t, w)
	if err := w.Err(); err == nil || !strings.Contains(err.Error(), "cluster-config:1: mode") {
		t.Errorf("after a bad change: %v", err)
	}
	if w.Current().Cluster.Mode != config.ModeSGPU {
		t.Error("the last good configuration is lost")
	}
	swap(t, dir, "4", "mode: native")
	wait(t, w)
	if w.Current().Cluster.Mode != config.ModeNative || w.Err() != nil {
		t.Errorf("after the repair: %s, %v", w.Current().Cluster.Mode, w.Err())
	}
}

func TestWatcherOutlivesWhatItCannotRead(t *testing.T) {
	dir, w := watched(t)
	unreadable := filepath.Join(dir, "..data", "nodes-config")
	swap(t, dir, "2", "mode: sgpu")
	wait(t, w)
	if err := os.Mkdir(unreadable, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "touch", "the watcher sees the directory, and not what is under ..data")
	for w.Err() == nil {
		wait(t, w)
	}
	if w.Current().Cluster.Mode != config.ModeSGPU || !strings.Contains(w.Err().Error(), "nodes-config") {
		t.Errorf("a key that is a directory: %s, %v", w.Current().Cluster.Mode, w.Err())
	}
	if err := os.Remove(unreadable); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "touch", "again")
	for w.Err() != nil {
		wait(t, w)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for w.Err() == nil {
		wait(t, w)
	}
	if w.Current().Cluster.Mode != config.ModeSGPU || !errors.Is(w.Err(), os.ErrNotExist) {
		t.Errorf("without its directory: %s, %v", w.Current().Cluster.Mode, w.Err())
	}
}

// TestManyChangesAreOneRead writes faster than the directory settles.
func TestManyChangesAreOneRead(t *testing.T) {
	dir, w := watched(t)
	for i := range 20 {
		swap(t, dir, strconv.Itoa(i+2), "sgpu: {slotsPerGPU: "+strconv.Itoa(i+1)+"}")
	}
	changes := 0
	for w.Current().Cluster.SGPU.SlotsPerGPU != 20 {
		wait(t, w)
		changes++
	}
	if changes > 5 || w.Err() != nil {
		t.Errorf("%d reads of 20 changes, %v", changes, w.Err())
	}
}

func TestWatcherSeesPlainFiles(t *testing.T) {
	dir := t.TempDir()
	w, err := config.NewWatcher(dir, &rule.CEL{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	write(t, dir, "version", "v1")
	write(t, dir, "cluster-config", "mode: sgpu")
	for w.Current().Cluster.Mode != config.ModeSGPU {
		wait(t, w)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWatcherStart(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "version", "v0")
	if _, err := config.NewWatcher(dir, &rule.CEL{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), `unsupported version "v0"`) {
		t.Errorf("a bad file: %v", err)
	}
	w, err := config.NewWatcher("", &rule.CEL{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); err != nil || w.Current().Cluster.Mode != config.ModeNative {
		t.Errorf("no directory: %v", err)
	}
}
