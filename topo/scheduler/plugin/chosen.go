package plugin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// chosenBy is which whole GPUs a pod accepts; nil for any, and for a pod that
// asks for none.
func (p *Plugin) chosenBy(pod *corev1.Pod) (*sgpu.Chosen, error) {
	c, err := sgpu.ReadChosen(pod.Annotations, p.book.domains)
	if c == nil && err == nil || fit.AmountOf(fit.Requests(pod), p.gpu()) == 0 {
		return nil, nil //nolint:nilnil // Most pods accept any GPU, which is no error.
	}
	return c, err
}

func (p *Plugin) gpu() corev1.ResourceName { return corev1.ResourceName(p.book.domains.GPUResource()) }

// filterChosen tells why a node has not the GPUs that a pod accepts. No victim
// would help: nobody knows which GPUs a pod would leave.
func (p *Plugin) filterChosen(c *cycle, info framework.NodeInfo) *framework.Status {
	left, err := p.left(c.chosen, info)
	if err != nil {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) do not say which GPUs are free")
	}
	promised := fit.RoomOf(info, c.promises[info.Node().Name], c.priority, c.own)
	if left-promised.Promise(p.gpu()) < fit.AmountOf(c.amounts, p.gpu()) {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable,
			"node(s) have too few free GPUs that the pod accepts")
	}
	return nil
}

func (p *Plugin) left(c *sgpu.Chosen, info framework.NodeInfo) (int64, error) {
	return p.whole.Left(c, info.Node(), info.GetRequested().GetScalarResources()[p.gpu()])
}

// choose tells a class of members which GPUs they accept, so that no plan gives
// them a node without these. Annotations that contradict each other are
// PreFilter's to tell.
func (p *Plugin) choose(pod *corev1.Pod, class *fit.Class) {
	c, err := p.chosenBy(pod)
	if c == nil || err != nil {
		return
	}
	class.Choose(p.gpu(), c.String(), func(info framework.NodeInfo) int64 {
		left, err := p.left(c, info)
		if err != nil {
			return 0
		}
		return left
	})
}
