package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"volcano.sh/volcano/pkg/scheduler/api"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/placement"
)

// job is the state of a job in a session.
type job struct {
	// size is the number of GPUs of its super-nodes; 0 without a request for them.
	size int
	// nodes has the nodes of its pods; nil before it is planned.
	nodes map[api.TaskID]string
	// err explains why it gets no room in this session.
	err error
}

// maxSize bounds the annotation.
const maxSize = 1 << 20

// read finds the annotation on the job's PodGroup, where Volcano copies the job's own,
// or on any of its pods. Two values are an error.
func (p *podAffinity) read(info *api.JobInfo) *job {
	var j job
	if info.PodGroup != nil {
		j.add(info.PodGroup.Annotations, p.domains)
	}
	for _, task := range ordered(info) {
		j.add(task.Pod.Annotations, p.domains)
	}
	return &j
}

// add reads the annotation in both of its spellings; the first error stays.
func (j *job) add(annotations map[string]string, d wellknown.Domains) {
	for _, key := range d.GPUGroupSizes() {
		text, ok := annotations[key]
		if !ok || j.err != nil {
			continue
		}
		size, err := strconv.Atoi(text)
		switch {
		case err != nil || strconv.Itoa(size) != text || size < 1 || size > maxSize:
			j.err = fmt.Errorf("annotation %s: %q is not 1 to %d", key, wellknown.Clip(text), maxSize)
		case j.size > 0 && size != j.size:
			j.err = fmt.Errorf("annotation %s: %d and %d in one job", key, j.size, size)
		default:
			j.size = size
		}
	}
}

// plan gives every pod of a job a node, those that have one already their own.
func (p *podAffinity) plan(info *api.JobInfo, size int) (map[api.TaskID]string, error) {
	tree, err := p.topology()
	if err != nil {
		return nil, err
	}
	tasks := ordered(info)
	request := placement.Gang{Slice: size, MinMember: min(int(info.MinAvailable), len(tasks))}
	var classes []*api.TaskInfo // The first pod of each.
	for i, task := range tasks {
		class := slices.IndexFunc(classes, func(other *api.TaskInfo) bool { return alike(task, other) })
		if class < 0 {
			class, classes = len(classes), append(classes, task)
		}
		if i == 0 || !alike(task, tasks[i-1]) {
			request.Tasks = append(request.Tasks, placement.Task{
				Name: cmp.Or(task.TaskRole, placement.TaskOf(task.Pod)), Class: class, GPUs: gpusOf(task.Resreq, p.domains),
			})
		}
		request.Tasks[len(request.Tasks)-1].Pods++
		if task.NodeName != "" {
			id, ok := tree.ID(task.NodeName)
			if !ok {
				id = placement.None
			}
			request.Placed = append(request.Placed, placement.Member{Rank: i, Node: id})
		}
	}
	capacity, err := p.capacity(tree, classes, len(tasks))
	if err != nil {
		return nil, err
	}
	plan, err := placement.Place(tree, &request, capacity)
	if err != nil {
		return nil, err
	}
	nodes := make(map[api.TaskID]string, len(tasks))
	for i, id := range plan.Nodes {
		if tasks[i].NodeName == "" && id != placement.None {
			nodes[tasks[i].UID] = tree.Name(id)
		}
	}
	return nodes, nil
}

// topology returns the tree of super-nodes. Without one nothing is guessed: the job waits.
func (p *podAffinity) topology() (*placement.Tree, error) {
	switch fresh := p.answer.Fresh(time.Now()); {
	case !fresh && p.err != nil:
		return nil, fmt.Errorf("waits for the topology from topo-master: %w", p.err)
	case !fresh:
		return nil, errors.New("waits for the topology from topo-master")
	}
	if p.tree != nil {
		return p.tree, nil
	}
	groups := p.answer.Groups
	if trees := placement.NewAxes(groups, p.answer.Domains); trees != nil {
		groups = trees.Whole // A super-node is an NVLink domain where these cross the groups of cables.
	}
	var err error
	p.tree, err = placement.New(groups)
	return p.tree, err
}

// ordered returns the pods of a job by rank.
func ordered(info *api.JobInfo) []*api.TaskInfo {
	pods, tasks := make([]*corev1.Pod, 0, len(info.Tasks)), make(map[types.UID]*api.TaskInfo, len(info.Tasks))
	for _, task := range info.Tasks {
		pods, tasks[task.Pod.UID] = append(pods, task.Pod), task
	}
	placement.OrderPods(pods)
	out := make([]*api.TaskInfo, len(pods))
	for i, pod := range pods {
		out[i] = tasks[pod.UID]
	}
	return out
}

// alike reports whether the same nodes take two pods of a job.
func alike(a, b *api.TaskInfo) bool {
	return a.TaskRole == b.TaskRole && placement.TaskOf(a.Pod) == placement.TaskOf(b.Pod) &&
		a.InitResreq.Equal(b.InitResreq, api.Zero)
}

// capacity returns how many pods of each class fit on each node now.
func (p *podAffinity) capacity(tree *placement.Tree, classes []*api.TaskInfo, most int) (*placement.Capacity, error) {
	p.counting = true
	defer func() { p.counting = false }()
	out := placement.Capacity{Fit: make([][]int32, len(classes)), Free: make([]int32, tree.Len())}
	nodes := make([]*api.NodeInfo, tree.Len()) // Nil for those that Volcano does not have.
	for id := range nodes {
		if name := tree.Name(int32(id)); tree.Status(int32(id)) != v1alpha1.StatusNotReady {
			nodes[id] = p.session.Nodes[name]
		}
		if nodes[id] != nil {
			out.Free[id] = int32(gpusOf(nodes[id].Idle, p.domains)) //nolint:gosec // A node has fewer.
		}
	}
	for class, task := range classes {
		// The other plugins prepare what they check nodes by.
		if err := p.session.PrePredicateFn(task); err != nil {
			return nil, err
		}
		out.Fit[class] = make([]int32, len(nodes))
		for id, node := range nodes {
			if node == nil {
				continue
			}
			n := count(task, node.Idle, most)
			if n == 0 {
				continue
			}
			if err := p.session.PredicateFn(task, node); err != nil {
				continue
			}
			out.Fit[class][id] = int32(n) //nolint:gosec // At most the pods of a job.
		}
	}
	out.Together = func(id int32, pods []int32) bool { return nodes[id] != nil && together(classes, pods, nodes[id].Idle) }
	return &out, nil
}

// count returns how many such pods fit into what is idle, most at most.
func count(task *api.TaskInfo, idle *api.Resource, most int) int {
	if exclusive(task.Pod) {
		most = 1
	}
	sum := api.EmptyResource()
	for n := range most {
		if !sum.Add(task.InitResreq).LessEqual(idle, api.Zero) {
			return n
		}
	}
	return most
}

// together reports whether the given number of pods of each class fits into what is idle.
func together(classes []*api.TaskInfo, pods []int32, idle *api.Resource) bool {
	sum := api.EmptyResource()
	for class, n := range pods {
		sum.Add(classes[class].InitResreq.Clone().Multi(float64(n)))
	}
	return sum.LessEqual(idle, api.Zero)
}

// exclusive reports whether two such pods never share a node: they want a port of the
// host, or repel pods on it.
func exclusive(pod *corev1.Pod) bool {
	ports := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.HostPort > 0 })
	}
	if slices.ContainsFunc(pod.Spec.Containers, ports) {
		return true
	}
	a := pod.Spec.Affinity
	return a != nil && a.PodAntiAffinity != nil &&
		len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
}

// gpusOf returns the number of GPUs of every vendor that the domains stand for.
func gpusOf(amount *api.Resource, domains wellknown.Domains) (gpus int) {
	for _, d := range domains.Each() {
		gpus += int(amount.Get(corev1.ResourceName(d.GPUResource()))) / 1000 // Volcano counts in thousandths.
	}
	return gpus
}
