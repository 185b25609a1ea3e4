package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// podSpecs is the API server as the binder knows it.
type podSpecs struct{ *apiserver.Client }

// Pod implements [binder.PodSpecs].
func (p podSpecs) Pod(ctx context.Context, pod binder.Pod) (*corev1.Pod, error) {
	return p.Client.Pod(ctx, kubelet.Pod(pod))
}

// Warn implements [binder.Events].
func (p podSpecs) Warn(pod binder.Pod, reason, message string) {
	p.WarnPod(kubelet.Pod(pod), reason, message)
}
