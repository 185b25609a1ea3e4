package main

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

const brakeName = "Brake"

// brake is a plugin that stops the scheduler's loop once some pods hold a node: those of a
// gang wait in Permit then, the next one is before its PreFilter, and the test changes the
// cluster.
type brake struct {
	mu    sync.Mutex
	after int
	// on is the node that each pod holds.
	on            map[string]string
	there, onward chan struct{}
	// bind stops pods once they are on their way to be bound, if it is set; atBind is how many.
	bind   chan struct{}
	atBind int
}

func (*brake) Name() string { return brakeName }

func (b *brake) PreFilter(context.Context, fwk.CycleState, *corev1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	b.mu.Lock()
	stop := b.after > 0 && len(b.on) == b.after
	if stop {
		b.after = 0
		close(b.there)
	}
	b.mu.Unlock()
	if stop {
		<-b.onward
	}
	return nil, nil
}

func (*brake) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (b *brake) Reserve(_ context.Context, _ fwk.CycleState, p *corev1.Pod, node string) *fwk.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on != nil {
		b.on[p.Name] = node
	}
	return nil
}

func (b *brake) Unreserve(_ context.Context, _ fwk.CycleState, p *corev1.Pod, _ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.on, p.Name)
}

func (*brake) PreBindPreFlight(context.Context, fwk.CycleState, *corev1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return &fwk.PreBindPreFlightResult{}, nil
}

func (b *brake) PreBind(ctx context.Context, _ fwk.CycleState, _ *corev1.Pod, _ string) *fwk.Status {
	b.mu.Lock()
	wait := b.bind
	b.atBind++
	b.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	return nil
}

// binding is how many pods are on their way to be bound.
func (b *brake) binding() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.atBind
}

// withBrake is the documented configuration with the brake.
func withBrake(t *testing.T) *config.KubeSchedulerConfiguration {
	t.Helper()
	c := withArgs(loaded(t, documented), args(""))
	m := &c.Profiles[0].Plugins.MultiPoint
	m.Enabled = append([]config.Plugin{{Name: brakeName}}, m.Enabled...)
	return c
}

// midGang adds a gang of four pods with two GPUs each, of which three wait in Permit now, two
// on the node full and one on the node half. The cluster has no more than it needs.
func midGang(t *testing.T, nodes ...*corev1.Node) (w *cluster, full, half string, onward func()) {
	t.Helper()
	w = startAs(t, withBrake(t), nodes...)
	b := &w.brake
	b.mu.Lock()
	b.after, b.on, b.there, b.onward = 3, map[string]string{}, make(chan struct{}), make(chan struct{})
	b.mu.Unlock()
	onward = sync.OnceFunc(func() { close(b.onward) })
	t.Cleanup(onward) // Before the scheduler is stopped.
	w.gang("x", 4, 2, 4)
	select {
	case <-b.there:
	case <-time.After(20 * time.Second):
		t.Fatal("three members do not come to Permit")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	count := map[string]int{}
	for _, node := range b.on {
		count[node]++
	}
	for node, n := range count {
		if n == 2 {
			full = node
		} else {
			half = node
		}
	}
	if full == "" || half == "" {
		t.Fatalf("they hold %v", maps.Clone(b.on))
	}
	return w, full, half, onward
}

// seen waits until the scheduler's caches are as new as the API server.
func (w *cluster) seen() { <-time.After(100 * time.Millisecond) }

// givenBack waits until no member waits in Permit.
func (w *cluster) givenBack() {
	w.Helper()
	deadline := time.After(10 * time.Second)
	for {
		w.brake.mu.Lock()
		n := len(w.brake.on)
		w.brake.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-deadline:
			w.Fatalf("%d members hold their nodes", n)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// waiting is the member that holds no node.
func (w *cluster) waiting() string {
	w.brake.mu.Lock()
	defer w.brake.mu.Unlock()
	for name := range w.pods() {
		if w.brake.on[name] == "" {
			return name
		}
	}
	w.Fatal("all members hold a node")
	return ""
}
