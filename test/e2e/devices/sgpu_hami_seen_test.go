//go:build e2e && linux

package devices

import (
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	apinames "github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
)

// lockLog is when the Node's lock was seen to change.
type lockLog struct {
	mu   sync.Mutex
	last string               // guarded by mu
	gone map[string]time.Time // guarded by mu
}

// locks watches the Node's lock until the test ends.
func (r *rig) locks(t *testing.T) *lockLog {
	t.Helper()
	l := &lockLog{gone: map[string]time.Time{}}
	watcher, err := r.client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + r.Node()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			if n, ok := event.Object.(*corev1.Node); ok && event.Type != watch.Deleted {
				l.see(n.Annotations[apinames.HAMiLock])
			}
		}
	}()
	t.Cleanup(func() {
		watcher.Stop()
		<-done
	})
	return l
}

func (l *lockLog) see(value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != "" && value != l.last {
		l.gone[l.last] = time.Now()
	}
	l.last = value
}

// waitGone waits until a lock that was there is gone, and returns when that was
// seen.
func (l *lockLog) waitGone(t *testing.T, value string) (at time.Time) {
	t.Helper()
	eventually(t, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		var gone bool
		if at, gone = l.gone[value]; !gone {
			return fmt.Sprintf("the lock %q is not seen to go; it is %q", value, l.last)
		}
		delete(l.gone, value) // A pod that is replayed again has the same.
		return ""
	})
	return at
}

// hamiGPUs are the Node's for HAMi, by UUID; nil without the annotation.
func (r *rig) hamiGPUs(t *testing.T) map[string]hami.NodeGPU {
	t.Helper()
	text, ok := r.node(t).Annotations[apinames.HAMiGPUs]
	if !ok {
		return nil
	}
	list, err := hami.ParseNodeGPUs(text)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]hami.NodeGPU{}
	for _, c := range list {
		all[c.UUID] = c
	}
	return all
}

// waitHealthy waits until this many cards are healthy for HAMi; -1 is without
// an annotation.
func (r *rig) waitHealthy(t *testing.T, want int) {
	t.Helper()
	eventually(t, func() string {
		n := -1
		if gpus := r.hamiGPUs(t); gpus != nil {
			n = 0
			for _, c := range gpus {
				if c.Healthy {
					n++
				}
			}
		}
		if n != want {
			return fmt.Sprintf("%d cards are healthy for HAMi, want %d", n, want)
		}
		return ""
	})
}

// waitPhase waits for hami.io/bind-phase of a pod.
func (r *rig) waitPhase(t *testing.T, pod, want string) {
	t.Helper()
	r.waitPod(t, pod, func(p *corev1.Pod) string {
		if got := p.Annotations[apinames.HAMiBindPhase]; got != want {
			return fmt.Sprintf("its bind-phase is %q, want %q", got, want)
		}
		return ""
	})
}
