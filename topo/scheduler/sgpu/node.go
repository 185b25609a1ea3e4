package sgpu

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// nodeState holds a node's published data, and the free parts of its shared GPUs at a generation.
// No generation is used twice, by any node, and everything that the state is made of changes with
// it: the Node, its pods, and the decisions for these, since a pod is on the node only from its
// decision on.
type nodeState struct {
	published
	node       *corev1.Node
	generation int64
	// count is the number of pods at that generation: in a PodGroup's cycle the node gets members
	// without a new generation. -1 is for a state without pods yet.
	count int
	// left holds the shared GPUs with the amounts taken; nil if the node publishes none.
	left []quota.GPU
	// pods holds the claims of the node's pods. Objects of the API are immutable, so the same
	// pointer has the same claims.
	pods map[*corev1.Pod]*consumer
}

// published holds the content of a Node's annotations. Missing or invalid parts are nil.
type published struct {
	shared   *allocation.NodeGPUs
	free     *allocation.FreeGPUs
	topology affinity.Table
}

func publishedBy(node *corev1.Node) (p published) {
	p.shared, _ = allocation.ParseNodeGPUs(node.Annotations[wellknown.SharedGPUs])
	p.free, _ = allocation.ParseFreeGPUs(node.Annotations[wellknown.FreeGPUs])
	p.topology = affinity.ParseTable(node.Annotations[wellknown.GPUTopology])
	return p
}

// state computes again only what changed: Filter and Score need it of every node for
// every pod, and between two pods at most one node gets a pod.
func (s *Scheduler) state(info framework.NodeInfo) *nodeState {
	node, pods, generation := info.Node(), info.GetPods(), info.GetGeneration()
	had := s.stateOf(node)
	if had.generation == generation && had.count == len(pods) {
		return had
	}
	now := &nodeState{published: had.published, node: node, generation: generation, count: len(pods)}
	if now.shared != nil {
		now.pods = make(map[*corev1.Pod]*consumer, len(pods))
		for _, p := range pods {
			pod := p.GetPod()
			known := had.pods[pod]
			if known == nil || known.assumed {
				known = s.consumer(pod, node.Name, now.shared.GPUs)
			}
			now.pods[pod] = known
		}
		now.left = now.take()
	}
	s.states.Store(node.Name, now)
	return now
}

// stateOf returns the last state of a Node object. A new object's has the pods of the object before.
func (s *Scheduler) stateOf(node *corev1.Node) *nodeState {
	state, _ := s.states.Load(node.Name)
	last, _ := state.(*nodeState)
	if last != nil && last.node == node {
		return last
	}
	now := &nodeState{published: publishedBy(node), node: node, count: -1}
	if last != nil {
		now.pods = last.pods
	}
	s.states.Store(node.Name, now)
	return now
}

// published returns what a node publishes, whatever its pods take.
func (s *Scheduler) published(node *corev1.Node) *published { return &s.stateOf(node).published }

// ForgetNode drops the state of a node that is gone.
func (s *Scheduler) ForgetNode(name string) { s.states.Delete(name) }

// take counts what pods take of the published GPUs. What the node itself counts
// is the lower bound where the pods' annotations cannot be the whole truth.
func (n *nodeState) take() []quota.GPU {
	listed := quota.Published(n.shared)
	gpus, started := emptied(listed), emptied(listed)
	doubt := false
	for _, pod := range n.pods {
		doubt = doubt || pod.unknown
		for i := range gpus {
			charge(&gpus[i], pod.claims[gpus[i].UUID], nil)
			charge(&started[i], pod.started[gpus[i].UUID], nil)
		}
	}
	// A node counts what has started there. A pod that names another GPU than its
	// own shows as one more on that GPU.
	for i := range gpus {
		doubt = doubt || started[i].VCore > listed[i].VCore || started[i].Consumers > listed[i].Consumers ||
			started[i].UsedMiB > listed[i].UsedMiB
	}
	for i := range gpus {
		if doubt {
			atLeast(&gpus[i], &listed[i])
		}
	}
	return gpus
}

// emptied returns the GPUs with nothing taken.
func emptied(listed []quota.GPU) []quota.GPU {
	gpus := slices.Clone(listed)
	for i := range gpus {
		g := &gpus[i]
		g.VCore, g.UsedMiB, g.Consumers, g.Policy, g.Exclusive = 0, 0, 0, "", false
	}
	return gpus
}

// atLeast raises the amounts taken of a GPU to the amounts that its node publishes.
func atLeast(g, published *quota.GPU) {
	g.VCore, g.UsedMiB = max(g.VCore, published.VCore), max(g.UsedMiB, published.UsedMiB)
	g.Consumers = max(g.Consumers, published.Consumers)
	g.Exclusive = g.Exclusive || published.Exclusive
	if g.Policy == "" {
		g.Policy = published.Policy
	}
}
