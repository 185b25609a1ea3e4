//go:build e2e && linux

package devices

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pool are the rigs that tests have to themselves for a time, by kind. As many
// exist as tests of a kind ran at once.
var pool struct {
	sync.Mutex
	free map[string][]*rig
	made map[string]int
}

// failing is a whole rig, whose parts the test stops and breaks, and which it
// gives back whole. Such tests run side by side, because they mostly wait.
func failing(t *testing.T) *rig {
	t.Helper()
	beside(t)
	r := lend(t, "fail", options{}, (*rig).whole)
	r.whole(t)
	return r
}

// lend lends a rig to a test. restore makes it whole again after the test.
func lend(t *testing.T, kind string, o options, restore func(*rig, *testing.T)) *rig {
	t.Helper()
	r := take(kind)
	if r == nil {
		pool.Lock()
		if pool.free == nil {
			pool.free, pool.made = map[string][]*rig{}, map[string]int{}
		}
		pool.made[kind]++
		o.name = fmt.Sprintf("%s%d", kind, pool.made[kind])
		pool.Unlock()
		var err error
		if r, err = upRig(context.WithoutCancel(t.Context()), o); err != nil {
			t.Fatal(errors.Join(err, r.down()))
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.explain(t)
		}
		restore(r, t)
		if t.Failed() {
			// Others must not fail for it.
			if err := r.down(); err != nil {
				t.Error(err)
			}
			return
		}
		pool.Lock()
		defer pool.Unlock()
		pool.free[kind] = append(pool.free[kind], r)
	})
	return r
}

// take is a rig that no pod has; nil without one.
func take(kind string) *rig {
	pool.Lock()
	defer pool.Unlock()
	free := pool.free[kind]
	if len(free) == 0 {
		return nil
	}
	last := len(free) - 1
	pool.free[kind] = free[:last]
	return free[last]
}

// closePool takes down what tests gave back.
func closePool() error {
	pool.Lock()
	defer pool.Unlock()
	var errs []error
	for _, free := range pool.free {
		for _, r := range free {
			errs = append(errs, r.down())
		}
	}
	return errors.Join(errs...)
}

// whole brings up what does not run, and waits until the kubelet serves all
// devices of the machine.
func (r *rig) whole(t *testing.T) {
	t.Helper()
	if !r.plugin.running() {
		// Not the test's context: it has ended when this is a clean-up.
		if err := r.plugin.start(r.ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	m := r.machine(t)
	r.within(t, 60*time.Second, func() string {
		if _, err := r.get(r.ctx(t), "/readyz"); err != nil {
			return err.Error()
		}
		n, err := r.client.CoreV1().Nodes().Get(r.ctx(t), r.Node(), metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if q := n.Status.Allocatable[gpuResource]; q.Value() != int64(len(m.GPUs)) {
			return fmt.Sprintf("the node has %d GPUs of %d", q.Value(), len(m.GPUs))
		}
		if q := n.Status.Allocatable[hcaResource]; q.Value() == 0 {
			return "the node has no HCAs"
		}
		return ""
	})
}
