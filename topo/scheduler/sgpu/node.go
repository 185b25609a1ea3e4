package sgpu

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// nodeState is what a node publishes, and what its shared GPUs have left at a
// generation. No generation is used twice, by any node, and everything that the
// state is made of changes with it: the Node, its pods, and the decisions for
// these, since a pod is on the node only from its decision on.
type nodeState struct {
	published
	generation int64
	// count is how many pods it had: in a PodGroup's cycle members are put on a
	// node without another generation.
	count int
	// left are the shared GPUs with what is taken of each; nil if the node
	// publishes none.
	left []quota.GPU
	// pods are what the node's pods claim. An object of the API never changes, so
	// the same one still claims the same.
	pods map[*corev1.Pod]*consumer
}

// published is what a Node's annotations contain; what it does not publish, or what
// is invalid, is nil.
type published struct {
	shared   *allocation.NodeGPUs
	free     *allocation.FreeGPUs
	topology *topology
}

func (s *Scheduler) publishedBy(node *corev1.Node) (p published) {
	p.shared, _ = allocation.ParseNodeGPUs(node.Annotations[wellknown.SharedGPUs])
	p.free, _ = allocation.ParseFreeGPUs(node.Annotations[wellknown.FreeGPUs])
	of := topologyKey{text: node.Annotations[wellknown.GPUTopology]}
	if p.free != nil {
		of.gpu = p.free.Resource
	}
	p.topology = s.topologies.of(of)
	return p
}

// state is computed again only for what changed: Filter and Score need it of every
// node for every pod, and between two pods one node at most gets one pod. States are by
// Node object, which never changes: a name costs an allocation for each look.
func (s *Scheduler) state(info framework.NodeInfo) *nodeState {
	node, pods, generation := info.Node(), info.GetPods(), info.GetGeneration()
	had := s.states.load(node)
	if had != nil && had.generation == generation && had.count == len(pods) {
		return had // Nothing is allocated for the many nodes of which nothing changed.
	}
	now := &nodeState{generation: generation, count: len(pods)}
	if had != nil {
		now.published = had.published
	} else {
		now.published = s.publishedBy(node)
		had = s.states.replace(node.Name, node)
	}
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
	s.states.store(node, now)
	return now
}

// published is what a node publishes, whatever its pods take.
func (s *Scheduler) published(node *corev1.Node) *published {
	if had := s.states.load(node); had != nil {
		return &had.published
	}
	now := s.publishedBy(node)
	return &now
}

// topology is that of a node.
func (s *Scheduler) topology(info framework.NodeInfo) *topology {
	if known := s.states.topology(info.Node()); known != nil {
		return known
	}
	return s.state(info).topology
}

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

// emptied are GPUs of which nothing is taken.
func emptied(listed []quota.GPU) []quota.GPU {
	gpus := slices.Clone(listed)
	for i := range gpus {
		g := &gpus[i]
		g.VCore, g.UsedMiB, g.Consumers, g.Policy, g.Exclusive = 0, 0, 0, "", false
	}
	return gpus
}

// atLeast raises what is taken of a GPU to what its node publishes.
func atLeast(g, published *quota.GPU) {
	g.VCore, g.UsedMiB = max(g.VCore, published.VCore), max(g.UsedMiB, published.UsedMiB)
	g.Consumers = max(g.Consumers, published.Consumers)
	g.Exclusive = g.Exclusive || published.Exclusive
	if g.Policy == "" {
		g.Policy = published.Policy
	}
}
