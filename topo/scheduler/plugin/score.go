package plugin

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/packing"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// merit is a node's for one pod: less is better, the first number before the second.
type merit [4]float64

// PreScore scores the nodes for a pod, unless all are equal, or it has its node as a member of a gang.
//
// Nodes are ordered by what the pod costs those that come after it, see [packing.Demand.Cost]; for
// shares then by what is left of their GPUs; then by idle GPUs, so that whole nodes stay whole; then
// by the load of CPU and memory, the fullest first, of nodes without GPUs the emptiest. Pods without GPUs
// cost nothing on nodes without idle GPUs. For several whole GPUs those that go together come first, as
// nodes publish it; for one this decides between nodes that are equal otherwise. Shares with the policy
// spread go to the emptiest GPUs.
func (p *Plugin) PreScore(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
) *framework.Status {
	c := cycleOf(state)
	if c == nil { // PreFilter skipped it.
		c = &cycle{Amounts: planner.Requests(pod, p.args.Ignored...)}
		c.gpu = p.gpus.GPUs().In(c.Amounts)
	}
	if c.Node != "" {
		return framework.NewStatus(framework.Skip)
	}
	p.survey()
	merits, order := make([]merit, len(nodes)), make([]int, len(nodes))
	p.handle.Parallelizer().Until(ctx, len(nodes), func(i int) { merits[i], order[i] = p.merit(c, nodes[i]), i }, Name)
	compare := func(a, b int) int { return slices.Compare(merits[a][:], merits[b][:]) }
	slices.SortFunc(order, compare)
	if len(order) == 0 || compare(order[0], order[len(order)-1]) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	c.scores = make(map[string]int64, len(nodes))
	score := framework.MaxScore
	for at, i := range order {
		// The best nodes are far ahead, so that the scores of other plugins do not blur the order.
		if at > 0 && compare(order[at-1], i) != 0 {
			score = framework.MaxScore / 2 * int64(len(order)-at) / int64(len(order))
		}
		c.scores[nodes[i].Node().Name] = score
	}
	state.Write(cycleKey, c)
	return nil
}

// Score returns what PreScore found.
func (*Plugin) Score(
	_ context.Context, state framework.CycleState, _ *corev1.Pod, info framework.NodeInfo,
) (int64, *framework.Status) {
	return cycleOf(state).scores[info.Node().Name], nil
}

// ScoreExtensions returns nil: PreScore keeps to the framework's scale.
func (*Plugin) ScoreExtensions() framework.ScoreExtensions { return nil }

func (p *Plugin) merit(c *cycle, info framework.NodeInfo) merit {
	gpus, was := c.Amounts[c.gpu], p.gpus.Use(nil, info)
	is := was
	if c.request != nil {
		if is = p.gpus.Use(c.request, info); p.gpus.Spreads(c.request) {
			return merit{float64(is.Load)}
		}
	}
	before := packing.Room{GPUs: was.Idle, Parts: was.Parts, Left: make([]int64, 0, 8)}
	after := packing.Room{GPUs: is.Idle - packing.Whole*gpus, Parts: is.Parts, Left: make([]int64, 0, 8)}
	for _, name := range p.demand.Names() {
		left := int64(-1)
		if has := amountOf(info.GetAllocatable(), name); has > 0 {
			left = max(0, has-used(info, name))
		}
		before.Left, after.Left = append(before.Left, left), append(after.Left, max(min(left, 0), left-c.Amounts[name]))
	}
	cost, load := p.demand.Cost(info.Node().Name, before, after), loadOf(info)
	if was.Total > 0 {
		load = -load
	}
	if gpus == 0 {
		return merit{cost, float64(is.Rest), float64(was.Idle), load}
	}
	topology := -float64(p.gpus.Topology(c.gpu, gpus, p.args.GPUAware, info.Node()))
	if gpus > 1 {
		return merit{topology, cost, float64(was.Idle), load}
	}
	return merit{cost, float64(was.Idle), topology, load}
}

// loadOf returns how much of the CPU and the memory of a node is requested, 0 to 2.
func loadOf(info framework.NodeInfo) (sum float64) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		sum += float64(used(info, name)) / float64(max(1, amountOf(info.GetAllocatable(), name)))
	}
	return sum
}

func used(info framework.NodeInfo, name corev1.ResourceName) int64 {
	if name == corev1.ResourcePods {
		return int64(len(info.GetPods()))
	}
	return amountOf(info.GetRequested(), name)
}

func amountOf(r framework.Resource, name corev1.ResourceName) int64 {
	switch name { //nolint:exhaustive // The others are among the scalar resources.
	case corev1.ResourceCPU:
		return r.GetMilliCPU()
	case corev1.ResourceMemory:
		return r.GetMemory()
	case corev1.ResourceEphemeralStorage:
		return r.GetEphemeralStorage()
	case corev1.ResourcePods:
		return int64(r.GetAllowedPodNumber())
	}
	return r.GetScalarResources()[name]
}

// maxLearned bounds the pods on nodes that a scheduler learns from when it starts.
const maxLearned = 2048

// survey counts the GPUs of the cluster from time to time. From then on learnDemand finds the nodes of a class
// again. At first survey learns from pods on nodes.
func (p *Plugin) survey() {
	first := p.surveyed.IsZero()
	if !first && time.Since(p.surveyed) < capacityEvery {
		return
	}
	infos, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return
	}
	p.surveyed, p.capacity, p.selected = time.Now(), 0, map[planner.Key]bool{}
	pods := 0
	for _, info := range infos {
		p.capacity += p.gpus.Use(nil, info).Total
		pods += len(info.GetPods())
	}
	if !first {
		return
	}
	at, step := 0, 1+pods/maxLearned
	for _, info := range infos {
		for _, pod := range info.GetPods() {
			if at++; at%step == 0 {
				p.learnDemand(pod.GetPod(), infos)
			}
		}
	}
}

// learnDemand adds a pod with GPUs to the demand.
func (p *Plugin) learnDemand(pod *corev1.Pod, infos []framework.NodeInfo) {
	amounts := planner.Requests(pod, p.args.Ignored...)
	gpus := int64(0)
	for _, gpu := range p.gpus.GPUs() {
		gpus += packing.Whole * amounts[gpu]
		delete(amounts, gpu)
	}
	if r, err := p.gpus.Request(pod); err == nil && r != nil {
		gpus += r.GPUs()
	}
	if gpus == 0 {
		return
	}
	class, of := p.cache.NewMember(pod).Class, ""
	if class.Selects(p.gpus.GPUs()) {
		of = string(class.Key[:])
		if !p.selected[class.Key] {
			p.selected[class.Key] = true
			p.selectNodes(class, infos)
		}
	}
	p.demand.Add(gpus, amounts, p.capacity, of)
}

// selectNodes finds the nodes with GPUs that take pods of a class.
func (p *Plugin) selectNodes(class *planner.Class, infos []framework.NodeInfo) {
	var names []string
	on := int64(0)
	for _, info := range infos {
		if n := p.gpus.Use(nil, info).Total; n > 0 && class.Obstacle(info.Node()) == "" {
			names, on = append(names, info.Node().Name), on+n
		}
	}
	p.demand.Select(string(class.Key[:]), names, on)
}
