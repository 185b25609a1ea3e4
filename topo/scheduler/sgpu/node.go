package sgpu

import (
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// nodeState is what a node's GPUs had left at a generation. No generation is used
// twice, by any node, and everything that the state is made of changes with it:
// the Node, its pods, and the decisions for these, since a pod is on the node only
// from its decision on.
type nodeState struct {
	generation int64
	// count is how many pods it had: in a PodGroup's cycle members are put on a
	// node without another generation.
	count int
	gpus  []quota.GPU
	err   error
	// pods are what the node's pods have. An object of the API never changes, so
	// the same one still has the same.
	pods map[*corev1.Pod]*sharer

	mu sync.Mutex
	// results are those of try, up to maxResults.
	results map[resultKey]result
}

const maxResults = 64

type resultKey struct {
	request key
	how     config.Placement
}

type result struct {
	load   int64
	reason string
}

// try is how full a node's GPUs would be with a request, 0 to 100, or why they
// have no room for it. The result is computed once for pods that request the same,
// until the node changes.
func (s *Scheduler) try(r *Request, info framework.NodeInfo) (percent int64, reason string, err error) {
	state := s.state(info)
	if state.err != nil {
		return 0, "", state.err
	}
	state.mu.Lock()
	defer state.mu.Unlock()
	k := resultKey{r.key, s.placement}
	if cached, ok := state.results[k]; ok {
		return cached.load, cached.reason, nil
	}
	gpus := slices.Clone(state.gpus)
	var out result
	if _, out.reason = r.place(gpus, s.placement); out.reason == "" {
		out.load = load(gpus)
	}
	if r.key != (key{}) && len(state.results) < maxResults {
		state.results[k] = out
	}
	return out.load, out.reason, nil
}

// left are the GPUs of a node with what is taken of each; a copy.
func (s *Scheduler) left(info framework.NodeInfo) ([]quota.GPU, error) {
	state := s.state(info)
	return slices.Clone(state.gpus), state.err
}

// state is computed again only for what changed: Filter and Score need it of every
// node for every pod, and between two pods one node at most gets one pod.
func (s *Scheduler) state(info framework.NodeInfo) *nodeState {
	node := info.Node()
	var had *nodeState
	if last, ok := s.states.Load(node.Name); ok {
		if had, _ = last.(*nodeState); had.generation == info.GetGeneration() && had.count == len(info.GetPods()) {
			return had
		}
	}
	now := &nodeState{
		generation: info.GetGeneration(), count: len(info.GetPods()), results: map[resultKey]result{},
		pods: make(map[*corev1.Pod]*sharer, len(info.GetPods())),
	}
	all := make([]*sharer, 0, len(info.GetPods()))
	for _, p := range info.GetPods() {
		pod := p.GetPod()
		var known *sharer
		if had != nil {
			known = had.pods[pod]
		}
		if known == nil {
			known = s.sharer(pod)
		}
		now.pods[pod] = known
		all = append(all, known)
	}
	now.gpus, now.err = s.taken(node, all)
	s.states.Store(node.Name, now)
	return now
}

// taken are the published GPUs of a node with what its pods take of each. The
// error is that of the node's annotation.
func (s *Scheduler) taken(node *corev1.Node, pods []*sharer) ([]quota.GPU, error) {
	published, err := s.published.Read(node, wellknown.SharedGPUs, parsePublished)
	if err != nil {
		return nil, err
	}
	gpus := slices.Clone(published)
	for i := range gpus {
		g := &gpus[i]
		g.VCore, g.UsedMiB, g.Consumers, g.Policy, g.Exclusive = 0, 0, 0, "", false
	}
	unknown := false
	for _, p := range pods {
		if p.request != nil {
			unknown = s.charge(p, gpus, node.Name) || unknown
		}
	}
	if unknown {
		for i := range gpus {
			atLeast(&gpus[i], &published[i])
		}
	}
	return gpus, nil
}

func parsePublished(text string) ([]quota.GPU, error) {
	if text == "" {
		return nil, errors.New("node has no shared GPUs")
	}
	all, err := allocation.ParseNodeGPUs(text)
	if err != nil {
		return nil, err
	}
	return quota.Published(all), nil
}

// sharer is a pod on a node, with the annotations that assign GPUs to it.
type sharer struct {
	pod *corev1.Pod
	// request is nil for a pod that requests no share, or an invalid one, which no
	// node would bind.
	request *Request
	// bound and decided are nil without the annotation, and if it is invalid.
	bound   *allocation.Bound
	decided *allocation.Allocation
}

func (s *Scheduler) sharer(pod *corev1.Pod) *sharer {
	p := &sharer{pod: pod}
	request, err := parseRequest(pod, s.config)
	if err != nil {
		return p
	}
	p.request = request
	if text, ok := pod.Annotations[wellknown.SGPUBound]; ok {
		p.bound, _ = allocation.ParseBound(text)
	}
	if text, ok := pod.Annotations[wellknown.SGPUAllocation]; ok {
		p.decided, _ = allocation.ParseAllocation(text)
	}
	return p
}

// charge adds what a pod takes: the peak over its phases. unknown reports that no
// source assigns GPUs to one of its containers.
func (s *Scheduler) charge(p *sharer, gpus []quota.GPU, node string) (unknown bool) {
	var bound map[string]allocation.BoundContainer
	if p.bound != nil && p.bound.Node == node {
		bound = p.bound.Containers
	}
	decided := p.decided
	if _, ok := p.pod.Annotations[wellknown.SGPUAllocation]; !ok {
		decided = s.Decision(p.pod.UID)
	}
	var assigned map[string][]allocation.Share
	if decided != nil && decided.Node == node {
		assigned = decided.Containers
	}
	claims := make([][]quota.Claim, len(gpus))
	for i := range p.request.containers {
		c := &p.request.containers[i]
		shares, policy := assigned[c.name], c.request.Policy
		if b, ok := bound[c.name]; ok {
			shares, policy = b.Shares, quota.Policy(b.Policy)
		}
		unknown = unknown || len(shares) == 0
		for _, share := range shares {
			at := slices.IndexFunc(gpus, func(g quota.GPU) bool { return g.UUID == share.UUID })
			if at >= 0 {
				claims[at] = append(claims[at], quota.Claim{Phase: c.phase, Share: share, Policy: policy})
			}
		}
	}
	for at := range gpus {
		if len(claims[at]) > 0 {
			charge(&gpus[at], claims[at], nil)
		}
	}
	return unknown
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
