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
	// lockDelay is how long a lock may name a pod that is not watched here before
	// the plugin reads it from the API server. The watch of a pod that is being
	// bound takes less.
	lockDelay = time.Second
	// maxLockDelay bounds the pauses between such reads.
	maxLockDelay = 15 * time.Second
	// lockTries bounds the writes for one lock in a row: the kubelet and others
	// write the Node too.
	lockTries = 5
)

// lockView is the lock that the plugin saw last.
type lockView struct {
	value string
	since time.Time
	// readAfter is when the plugin may read the lock's pod from the API server.
	readAfter time.Time
	pause     time.Duration
	// reported is set once the log has that the lock is not heddle's.
	reported bool
}

// release removes the lock if it is over. It returns the time until the next
// check.
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
		// HAMi defines no owner for it. HAMi itself takes a lock without a name
		// after five minutes. A value that is no lock blocks HAMi until an
		// administrator removes it; heddle cannot know whether it is in use.
		b.reportLock(ctx, err)
		return pollInterval, nil
	}
	reason, known, err := b.lockOver(ctx, lock, state)
	if err != nil {
		return pollInterval, err
	}
	if !known {
		return max(time.Until(b.lock.readAfter), time.Millisecond), nil
	}
	if err := b.unlock(ctx, node.ResourceVersion, value); err != nil {
		return pollInterval, fmt.Errorf("release HAMi's node lock of pod %s/%s: %w", lock.Namespace, lock.Pod, err)
	}
	b.Log.DebugContext(ctx, "released HAMi's node lock",
		"namespace", lock.Namespace, "pod", lock.Pod, "reason", reason, "seen_for", time.Since(b.lock.since))
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
	b.Log.WarnContext(ctx, "HAMi's node lock is malformed; HAMi binds no pod to this node until it is removed", "err", err)
}

// lockOver returns the reason why a lock is over; known is false while it is
// not, or while that is not known.
func (b *Plugin) lockOver(ctx context.Context, lock Lock, state *State) (reason string, known bool, err error) {
	pod, listed := b.watched(lock)
	if pod != nil && !lock.before(pod) {
		reason = lock.Over(pod, b.Node, state.Resource)
		if reason == "" {
			// The pod is bound here, and its lock is another plugin's.
			b.wait()
		}
		return reason, reason != "", nil
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
	reason = lock.Over(pod, b.Node, state.Resource)
	return reason, reason != "", nil
}

// wait postpones the next read.
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
