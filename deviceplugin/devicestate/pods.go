package devicestate

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// API is the API server; deviceplugin/apiserver's client.
type API interface {
	// Pod returns a pod, by UID if known, else by namespace and name. A static pod has the
	// kubelet's UID, which its mirror in the API has as annotation kubernetes.io/config.mirror. It
	// may ask the API server and wait until ctx ends. Callers must not modify the pod.
	Pod(ctx context.Context, pod kubelet.Pod) (*corev1.Pod, error)
	// Watched returns a pod of this node without a request, nil if it is not among
	// those that are watched; complete is false while not all are.
	Watched(pod kubelet.Pod) (watched *corev1.Pod, complete bool)
	// WarnPod records an Event. It returns at once: no start of a container waits
	// for the API server.
	WarnPod(pod kubelet.Pod, reason, message string)
}

// podTimeout bounds how long a start waits for its pod's spec. Without the spec the container
// starts without hints.
const podTimeout = 3 * time.Second

// readPod returns a pod; nil if it is not known in time.
func (s *State) readPod(ctx context.Context, ref kubelet.Pod) *corev1.Pod {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	pod, err := s.api.Pod(ctx, ref)
	if err == nil {
		return pod
	}
	if !errors.Is(err, apiserver.ErrOffline) {
		s.options.Log.Warn("pod is not known, its containers get no hints", "pod", ref.String(), "err", err)
	}
	return nil
}

// isGone reports whether the API server has shown that a pod has ended or is not on
// this node any more.
func (s *State) isGone(ref kubelet.Pod) bool {
	pod, complete := s.api.Watched(ref)
	if pod != nil {
		return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	}
	return complete
}
