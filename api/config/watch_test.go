package config_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
)

// run returns a running watcher of a directory.
func run(t *testing.T, dir string) *config.Watcher {
	t.Helper()
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
	return w
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

func TestWatcherKeepsTheLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		swap(t, dir, "1", "mode: native")
		w := run(t, dir)
		if w.Current().Cluster.Mode != config.ModeNative || w.Err() != nil {
			t.Fatalf("start: %+v, %v", w.Current(), w.Err())
		}
		swap(t, dir, "2", "mode: sgpu")
		<-w.Changed()
		if w.Current().Cluster.Mode != config.ModeSGPU || w.Err() != nil {
			t.Errorf("after a change: %s, %v", w.Current().Cluster.Mode, w.Err())
		}
		swap(t, dir, "3", "mode: sgpuu")
		<-w.Changed()
		if err := w.Err(); err == nil || !strings.Contains(err.Error(), "cluster-config:1: mode") {
			t.Errorf("after a bad change: %v", err)
		}
		if w.Current().Cluster.Mode != config.ModeSGPU {
			t.Error("the last good configuration is lost")
		}
		swap(t, dir, "4", "mode: native")
		<-w.Changed()
		if w.Current().Cluster.Mode != config.ModeNative || w.Err() != nil {
			t.Errorf("after the repair: %s, %v", w.Current().Cluster.Mode, w.Err())
		}
	})
}

func TestWatcherOutlivesWhatItCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		swap(t, dir, "1", "mode: native")
		w := run(t, dir)
		unreadable := filepath.Join(dir, "..data", "nodes-config")
		swap(t, dir, "2", "mode: sgpu")
		<-w.Changed()
		if err := os.Mkdir(unreadable, 0o700); err != nil {
			t.Fatal(err)
		}
		for w.Err() == nil {
			<-w.Changed()
		}
		if w.Current().Cluster.Mode != config.ModeSGPU || !strings.Contains(w.Err().Error(), "nodes-config") {
			t.Errorf("a key that is a directory: %s, %v", w.Current().Cluster.Mode, w.Err())
		}
		if err := os.Remove(unreadable); err != nil {
			t.Fatal(err)
		}
		for w.Err() != nil {
			<-w.Changed()
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		for w.Err() == nil {
			<-w.Changed()
		}
		if w.Current().Cluster.Mode != config.ModeSGPU || !errors.Is(w.Err(), os.ErrNotExist) {
			t.Errorf("without its directory: %s, %v", w.Current().Cluster.Mode, w.Err())
		}
	})
}

func TestWatcherSeesPlainFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		w := run(t, dir)
		write(t, dir, "version", "v1")
		write(t, dir, "cluster-config", "mode: sgpu")
		for w.Current().Cluster.Mode != config.ModeSGPU {
			<-w.Changed()
		}
	})
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
