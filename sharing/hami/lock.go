package hami

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const maxLock = 512

// Lock is HAMi's lock of a node. HAMi holds at most one pod at a time between
// "to be bound" and "has its devices" and leaves the release to the node's
// plugin; without it the next pod waits for five minutes.
type Lock struct {
	// Since is the time when the lock was taken, in whole seconds of the scheduler's clock.
	Since          time.Time
	Namespace, Pod string
}

// ParseLock reads [wellknown.HAMiLock]: "2026-11-21T01:17:18Z,default,p1". The older
// spelling, the time alone, names no pod, and only its owner and time can end it; HAMi does so after
// five minutes.
func ParseLock(value string) (Lock, error) {
	if len(value) > maxLock {
		return Lock{}, fmt.Errorf("node lock of %d bytes", len(value))
	}
	parts := strings.Split(value, ",")
	since, err := time.Parse(time.RFC3339, parts[0])
	if err != nil {
		return Lock{}, fmt.Errorf("node lock %q: %w", value, err)
	}
	// They may stand in a path of the API: a lock must not choose which other object is read.
	isName := func(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
	if len(parts) != 3 || !isName(parts[1]) || !isName(parts[2]) {
		return Lock{}, fmt.Errorf("node lock %q: want time, namespace and pod", value)
	}
	return Lock{Since: since, Namespace: parts[1], Pod: parts[2]}, nil
}

// Over returns the reason why the lock can be released, "" while it cannot. pod
// is the pod that the lock names, or nil; node is the name of this
// Node, and resource the name of sgpu.
//
// A pod that is seen bound here is reason enough: HAMi posts the binding last,
// and its GPUs are in its own annotations, not in the lock.
// The lock of a pod that requests no sgpu is another plugin's to release: that
// plugin may find its pod by it.
func (l Lock) Over(pod *corev1.Pod, node, resource string) string {
	switch {
	case pod == nil:
		return "the pod is gone"
	case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return "the pod has ended"
	case pod.Spec.NodeName == "":
		return ""
	case pod.Spec.NodeName != node:
		return "the pod is bound elsewhere"
	case requests(pod, resource):
		return "the pod is bound"
	}
	return ""
}

// before reports whether a pod was bound before the lock was taken, which is then
// for another pod of the same name that is not watched yet, as in a StatefulSet.
// HAMi writes the time of binding after it took the lock.
func (l Lock) before(pod *corev1.Pod) bool {
	bound, err := strconv.ParseInt(pod.Annotations[wellknown.HAMiBindTime], 10, 64)
	return err != nil || bound < l.Since.Unix()
}

// requests reports whether HAMi takes the lock of a pod for one of sgpu.
func requests(pod *corev1.Pod, resource string) bool {
	of := func(c corev1.Container) bool {
		n, ok := c.Resources.Limits[corev1.ResourceName(resource)]
		return ok && n.Sign() > 0
	}
	return slices.ContainsFunc(pod.Spec.Containers, of) || slices.ContainsFunc(pod.Spec.InitContainers, of)
}

const (
	// lockDelay is the time for which a lock may name an unwatched pod before the plugin reads it
	// from the API server; each read is followed by a pause of pollInterval. The watch of a pod that is
	// being bound takes less.
	lockDelay = time.Second
	// lockTries bounds the writes for one lock in a row: the kubelet and others
	// write the Node too.
	lockTries = 5
)

// lockView is the lock that the plugin saw last.
type lockView struct {
	value string
	since time.Time
	// readAfter is the time from which the plugin may read the lock's pod from the API server.
	readAfter time.Time
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
	seen := b.lock.value == value
	if !seen {
		b.lock = lockView{value: value, since: now, readAfter: now.Add(lockDelay)}
	}
	lock, err := ParseLock(value)
	if err != nil {
		// HAMi defines no owner for it. HAMi itself takes a lock without a name
		// after five minutes. An invalid value blocks HAMi until an
		// administrator removes it; heddle cannot know whether it is in use.
		if !seen {
			b.Log.WarnContext(ctx, "HAMi's node lock is left to HAMi or an administrator",
				"value", wellknown.ClipTo(value, maxLock), "err", err)
		}
		return pollInterval, nil
	}
	reason, err := b.lockOver(ctx, lock, state)
	if err != nil {
		return pollInterval, err
	}
	if reason == "" {
		if again = time.Until(b.lock.readAfter); again <= 0 {
			again = pollInterval
		}
		return again, nil
	}
	if err := b.unlock(ctx, node.ResourceVersion, value); err != nil {
		return pollInterval, fmt.Errorf("release HAMi's node lock of pod %s/%s: %w", lock.Namespace, lock.Pod, err)
	}
	b.Log.DebugContext(ctx, "released HAMi's node lock",
		"namespace", lock.Namespace, "pod", lock.Pod, "reason", reason, "seen_for", time.Since(b.lock.since))
	b.lock = lockView{}
	return pollInterval, nil
}

// lockOver returns the reason why a lock is over, "" while it is not, or while
// that is not known.
func (b *Plugin) lockOver(ctx context.Context, lock Lock, state *State) (reason string, err error) {
	pod, listed := b.watched(lock)
	if pod != nil && !lock.before(pod) {
		return lock.Over(pod, b.Node, state.Resource), nil // Or its lock is another plugin's.
	}
	if !listed || time.Now().Before(b.lock.readAfter) {
		return "", nil
	}
	b.lock.readAfter = time.Now().Add(pollInterval)
	pod, err = b.API.ReadPod(ctx, lock.Namespace, lock.Pod)
	switch {
	case apierrors.IsNotFound(err):
		pod = nil
	case err != nil:
		return "", fmt.Errorf("pod of HAMi's node lock: %w", err)
	}
	return lock.Over(pod, b.Node, state.Resource), nil
}

// watched returns the pod of a lock if it is known to be on this node.
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
		err = b.API.AnnotateNode(ctx, version, map[string]*string{wellknown.HAMiLock: nil})
		if !apierrors.IsConflict(err) {
			return err
		}
		node, readErr := b.API.ReadNode(ctx)
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
