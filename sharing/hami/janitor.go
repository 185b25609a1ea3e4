package hami

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	// patience is how long a lock may name a pod that is not seen here until
	// the API server is asked for it. A pod that is being bound is seen in less.
	lockDelay = time.Second
	// lastPatience bounds the pauses between such questions.
	maxLockDelay = 15 * time.Second
	// lockTries bounds the writes for one lock in a row: the kubelet and others
	// write the Node too.
	lockTries = 5
)

// lockView is a lock as we have seen it.
type lockView struct {
	value string
	since time.Time
	// ask is when the API server may be asked for its pod.
	readAfter time.Time
	pause     time.Duration
	// left tells that it is none of ours, which was logged.
	reported bool
}

// release takes the lock away if it is over. It says when to look again.
func (b *Plugin) release(ctx context.Context, node *corev1.Node, state *State) (again time.Duration, err error) {
	value := node.Annotations[wellknown.HAMiLock]
	if value == "" || !state.Enabled {
		b.lock = lockView{}
		return pollInterval, nil
	}
	now := time.Now()
	if b.lock.value != value {
		b.lock = lockView{value: value, since: now, readAfter: now.Add(lockDelay), pause: lockDelay}
	}
	lock, err := ParseLock(value)
	if err != nil {
		// No rule of HAMi's says whose it is. One without a name HAMi takes
		// itself after five minutes; one that is no lock stands in HAMi's way
		// until somebody takes it away, and that is not ours to judge.
		b.reportLock(ctx, err)
		return pollInterval, nil
	}
	why, known, err := b.lockOver(ctx, lock, state)
	if err != nil {
		return pollInterval, err
	}
	if !known {
		return max(time.Until(b.lock.readAfter), time.Millisecond), nil
	}
	if err := b.unlock(ctx, node.ResourceVersion, value); err != nil {
		return pollInterval, fmt.Errorf("release HAMi's node lock of pod %s/%s: %w", lock.Namespace, lock.Pod, err)
	}
	b.Log.DebugContext(ctx, "HAMi's node lock is released",
		"namespace", lock.Namespace, "pod", lock.Pod, "why", why, "seen_for", time.Since(b.lock.since))
	b.lock = lockView{}
	return pollInterval, nil
}

func (b *Plugin) reportLock(ctx context.Context, err error) {
	if b.lock.reported {
		return
	}
	b.lock.reported = true
	if errors.Is(err, ErrAnonymous) {
		b.Log.InfoContext(ctx, "HAMi's node lock is left to HAMi", "value", b.lock.value, "err", err)
		return
	}
	b.Log.WarnContext(ctx, "HAMi's node lock is none; HAMi binds no pod to this node until it is removed", "err", err)
}

// over says why a lock is over; known is false while it is not, or while that
// is not known.
func (b *Plugin) lockOver(ctx context.Context, lock Lock, state *State) (why string, known bool, err error) {
	pod, listed := b.watched(lock)
	if pod != nil && !lock.before(pod) {
		why = lock.Over(pod, b.Node, state.Resource)
		if why == "" {
			// It is bound here, and another plugin's.
			b.wait()
		}
		return why, why != "", nil
	}
	if !listed || time.Now().Before(b.lock.readAfter) {
		return "", false, nil
	}
	b.wait()
	pod, err = b.Reader.ReadPod(ctx, lock.Namespace, lock.Pod)
	switch {
	case apierrors.IsNotFound(err):
		pod = nil
	case err != nil:
		return "", false, fmt.Errorf("pod of HAMi's node lock: %w", err)
	}
	why = lock.Over(pod, b.Node, state.Resource)
	return why, why != "", nil
}

// wait puts the next question off.
func (b *Plugin) wait() {
	b.lock.readAfter = time.Now().Add(b.lock.pause)
	b.lock.pause = min(2*b.lock.pause, maxLockDelay)
}

// watched is the pod of a lock if it is known to be on this node.
func (b *Plugin) watched(lock Lock) (pod *corev1.Pod, listed bool) {
	pods, _, listed := b.Watched.Pods()
	for _, p := range pods {
		if p.Name == lock.Pod && p.Namespace == lock.Namespace {
			return p, listed
		}
	}
	return nil, listed
}

// unlock removes exactly the lock that was seen.
func (b *Plugin) unlock(ctx context.Context, version, value string) error {
	var err error
	for range lockTries {
		err = b.Writer.AnnotateNode(ctx, version, map[string]*string{wellknown.HAMiLock: nil})
		if !apierrors.IsConflict(err) {
			return err
		}
		node, readErr := b.Reader.ReadNode(ctx)
		if readErr != nil {
			return readErr
		}
		if node.Annotations[wellknown.HAMiLock] != value {
			return nil
		}
		version = node.ResourceVersion
	}
	return err
}
