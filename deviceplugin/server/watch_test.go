package server_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"testing"

	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/test/kubelet"
)

// A goroutine that reads events into its stack keeps that for as long as it watches.
func TestAWatchIsSmall(t *testing.T) {
	const watches, most = 16, 32 << 10
	dir := kubelet.Dir(t)
	kubelet.Start(t, dir)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range watches {
		changed := notify.New()
		running.Go(func() { server.WatchDir(ctx, dir, changed, slog.New(slog.DiscardHandler)) })
		<-changed
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.StackInuse) - int64(before.StackInuse)) / watches; each > most {
		t.Errorf("a watch has %d bytes of stack, more than %d", each, most)
	}
	cancel()
	running.Wait()
}
