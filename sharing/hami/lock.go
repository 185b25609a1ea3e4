package hami

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// ErrAnonymous is a lock that names no pod: HAMi before 2.6, or another component.
// Only its owner and time can end it; HAMi does so after five minutes.
var ErrAnonymous = errors.New("the lock names no pod")

const (
	maxLock = 512
	// maxName is the API's limit of a pod's name and namespace, in bytes.
	maxName = 253
)

// Lock is HAMi's lock of a node. HAMi holds at most one pod at a time between
// "to be bound" and "has its devices" and leaves the release to the node's
// plugin; without it the next pod waits for five minutes.
type Lock struct {
	// Since is when it was taken, in whole seconds of the scheduler's clock.
	Since          time.Time
	Namespace, Pod string
}

// ParseLock reads [wellknown.HAMiLock]: "2026-11-21T01:17:18Z,default,p1". The older
// spelling, the time alone, is [ErrAnonymous].
func ParseLock(value string) (Lock, error) {
	if len(value) > maxLock {
		return Lock{}, fmt.Errorf("node lock of %d bytes", len(value))
	}
	parts := strings.Split(value, ",")
	since, err := time.Parse(time.RFC3339, parts[0])
	if err != nil {
		return Lock{}, fmt.Errorf("node lock %q: %w", value, err)
	}
	switch {
	case len(parts) == 1:
		return Lock{Since: since}, ErrAnonymous
	case len(parts) != 3 || !isName(parts[1]) || !isName(parts[2]):
		return Lock{}, fmt.Errorf("node lock %q: want time, namespace and pod", value)
	}
	return Lock{Since: since, Namespace: parts[1], Pod: parts[2]}, nil
}

// isName reports whether a word may stand in a path of the API: a lock must not
// choose which other object is read.
func isName(s string) bool {
	return s != "" && len(s) <= maxName && s[0] != '.' && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
	})
}

// String is how HAMi writes it.
func (l Lock) String() string {
	return strings.Join([]string{l.Since.Format(time.RFC3339), l.Namespace, l.Pod}, ",")
}

// Over returns the reason why the lock can be released, "" while it cannot. pod
// is the pod that the lock names, nil if there is none; node is the name of this
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
