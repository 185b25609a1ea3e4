package server_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/test/kubelet"
)

// counted waits until the kubelet took n registrations and has the devices,
// then makes a change reach it: had a further registration been under way, its
// stream would have come first or the count would differ.
func counted(t *testing.T, k *kubelet.Kubelet, r *rack, n int) {
	t.Helper()
	k.Wait(within(t), gpu, func(s kubelet.State) bool { return s.Registrations >= n && serving(2)(s) })
	r.set("a", "!b")
	k.Wait(within(t), gpu, serving(1))
	r.set("a", "b")
	alone := func(s kubelet.State) bool { return s.Connected == 1 && serving(2)(s) }
	if s := k.Wait(within(t), gpu, alone); s.Registrations != n {
		t.Errorf("%d registrations, want %d", s.Registrations, n)
	}
}

func TestEachKubeletGetsOneRegistration(t *testing.T) {
	tests := []struct {
		name  string
		begin func(k *kubelet.Kubelet)
		then  []func(k *kubelet.Kubelet)
	}{
		{"late, into a directory that was not there", func(k *kubelet.Kubelet) { _ = os.Remove(k.PluginDir()) }, []func(*kubelet.Kubelet){(*kubelet.Kubelet).Up}},
		{"wiped directory", (*kubelet.Kubelet).Up, []func(*kubelet.Kubelet){func(k *kubelet.Kubelet) {
			k.Stop()
			k.Wipe()
			k.Up()
		}}},
		{"wiped directory under a kubelet that restarts later", (*kubelet.Kubelet).Up, []func(*kubelet.Kubelet){func(k *kubelet.Kubelet) {
			k.Wipe()
			pause(k)
			k.Restart()
		}}},
		{"directory removed and made again", (*kubelet.Kubelet).Up, []func(*kubelet.Kubelet){func(k *kubelet.Kubelet) {
			k.Stop()
			_ = os.RemoveAll(k.PluginDir())
			k.Up()
		}}},
		{"own socket deleted", (*kubelet.Kubelet).Up, []func(*kubelet.Kubelet){func(k *kubelet.Kubelet) {
			paths, _ := filepath.Glob(filepath.Join(k.PluginDir(), "heddle-*.sock"))
			for _, path := range paths {
				_ = os.Remove(path)
			}
		}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := kubelet.Dir(t)
			if err := os.MkdirAll(filepath.Join(dir, "device-plugins"), 0o750); err != nil {
				t.Fatal(err)
			}
			k := kubelet.New(t, dir)
			r := newRack("a", "b")
			n := 0
			if tt.begin != nil {
				tt.begin(k)
			}
			run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r, Log: logger(t)}))
			if _, err := os.Stat(k.Socket()); err == nil {
				n++
				counted(t, k, r, n)
			}
			for _, step := range tt.then {
				step(k)
				n++
				counted(t, k, r, n)
			}
			if got := heddleSockets(t, k); len(got) != 1 {
				t.Errorf("sockets: %v", got)
			}
		})
	}
}

// pause gives the plugin time to do what it should not; nothing is expected
// to happen, so there is nothing to wait for.
func pause(*kubelet.Kubelet) { <-time.After(50 * time.Millisecond) }

// kill -9 of a plugin leaves its socket; the next process removes it. The
// kubelet's own quarrel with a path that it still holds never comes up.
func TestTheNextProcessTakesOver(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a", "b")
	stop := run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r}))
	k.Wait(within(t), gpu, serving(2))
	stale := heddleSockets(t, k)[0]
	end := func(stop func()) {
		stop()
		k.Wait(within(t), gpu, serving0) // The kubelet notices later.
	}
	end(stop)
	// What kill -9 leaves: a socket that no process listens on.
	dead := squatAt(t, stale)
	dead()
	if _, err := os.Stat(stale); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		again := run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r}))
		k.Wait(within(t), gpu, serving(2))
		if _, err := os.Stat(stale); err == nil {
			t.Error("the dead socket stays")
		}
		end(again)
	}
	if got := heddleSockets(t, k); len(got) != 0 {
		t.Errorf("sockets after the end: %v", got)
	}
}

// A second heddle process, as in a rolling upgrade with surge, may begin
// before the first one ends: the kubelet has devices throughout.
func TestARollingUpgradeLeavesNoGap(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a", "b")
	stop := run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r}))
	k.Wait(within(t), gpu, serving(2))
	run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: newRack("a", "b")}))
	k.Wait(within(t), gpu, func(s kubelet.State) bool { return s.Connected == 2 })
	stop()
	s := k.Wait(within(t), gpu, func(s kubelet.State) bool { return s.Connected == 1 })
	if len(s.Healthy) != 2 {
		t.Errorf("healthy devices after the first process ended: %v", s.Healthy)
	}
	if _, err := k.Admit(within(t), "pod", "main", gpu, 2); err != nil {
		t.Error(err)
	}
}

// A stop while Allocate is in flight waits for it: the kubelet's call would
// break, and the pod would fail for good.
func TestStopDrainsAllocate(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a", "b")
	entered, leave := make(chan struct{}), make(chan struct{})
	r.allocate = func(context.Context, []string) error {
		close(entered)
		<-leave
		return nil
	}
	stop := run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r}))
	k.Wait(within(t), gpu, serving(2))
	admitted := make(chan error, 1)
	go func() {
		_, err := k.Admit(t.Context(), "pod", "main", gpu, 1)
		admitted <- err
	}()
	<-entered
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		t.Fatal("Run returned with a call in flight")
	case <-time.After(20 * time.Millisecond):
	}
	close(leave)
	if err := <-admitted; err != nil {
		t.Errorf("the pod in flight: %v", err)
	}
	<-stopped
}

// The directory of a mount that was deleted on the host: only a new container
// helps, so Run ends with that.
func TestRunEndsWhenTheMountIsDead(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	open, err := os.Open(k.PluginDir())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := os.RemoveAll(k.PluginDir()); err != nil {
		t.Fatal(err)
	}
	// As a bind mount does, /proc/self/fd leads to the deleted directory.
	root := kubelet.Dir(t)
	if err := os.Symlink("/proc/self/fd/"+itoa(open.Fd()), filepath.Join(root, "device-plugins")); err != nil {
		t.Fatal(err)
	}
	if err := newPlugin(server.Options{Name: gpu, KubeletDir: root, Resource: newRack()}).Run(within(t)); err == nil {
		t.Error("Run returned no error")
	}
}

// BenchmarkRegister measures from the start of the kubelet, a little before
// its socket is there, until it has taken the registration.
func BenchmarkRegister(b *testing.B) {
	dir := kubelet.Dir(b)
	k := kubelet.Start(b, dir)
	run(b, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: newRack("a", "b")}))
	k.Wait(within(b), gpu, serving(2))
	var times []time.Duration
	for n := 2; b.Loop(); n++ {
		b.StopTimer()
		k.Stop()
		b.StartTimer()
		start := time.Now()
		k.Up()
		k.Wait(b.Context(), gpu, func(s kubelet.State) bool { return s.Registrations == n })
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	b.ReportMetric(times[len(times)*99/100].Seconds()*1000, "p99-ms")
}
