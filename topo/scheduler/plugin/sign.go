package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
)

// SignPod refuses to sign pods whose place depends on more than their spec says:
// members of gangs, shares of GPUs, chosen GPUs. All others it leaves to the
// other plugins, so that they are batched as in a stock scheduler.
func (p *Plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]framework.SignFragment, *framework.Status) {
	if p.isNative(pod) || gang.Mentions(pod) || p.particular(pod) {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	return nil, nil
}

// particular tells whether a pod's place depends on annotations or on shares.
func (p *Plugin) particular(pod *corev1.Pod) bool {
	d := p.book.domains
	for _, key := range []string{d.UseGPUUUID(), d.NoUseGPUUUID(), wellknown.UseGPUUUIDAlias, wellknown.NoUseGPUUUIDAlias} {
		if pod.Annotations[key] != "" {
			return true
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, name := range []string{d.SGPUResource(), d.VCoreResource(), d.VMemoryResource()} {
				if _, ok := list[i].Resources.Limits[corev1.ResourceName(name)]; ok {
					return true
				}
			}
		}
	}
	return false
}
