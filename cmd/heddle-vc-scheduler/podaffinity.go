package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"volcano.sh/volcano/pkg/scheduler/api"
	"volcano.sh/volcano/pkg/scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

const podAffinityName = "gpu-podaffinity"

// defaultMap is where heddle's chart has topo-master, installed in heddle-system.
const defaultMap = "http://heddle-topo-master.heddle-system.svc:9001/node_group"

// own is the score of the node that the plan has for a pod: more than all other plugins
// together give a node.
const own = 1e9

// podAffinity is the plugin gpu-podaffinity: the pods of a job with the annotation <vendor>/gpu-group-size go into
// super-nodes, so many GPUs in the order of ranks into each. Super-nodes are the lowest groups of topo-master's
// GET /node_group, and topo/placement decides which of them a job gets.
//
// Volcano makes every plugin again for each session, once a second, and allocates one job after the other in it.
// Before the first pod of a job gets a node, the job is planned as a whole, on what the jobs before it have left.
// Pods of one role are kept to the nodes that the plan has for the role: Volcano remembers for all pods of a role
// which nodes rejected one. Of these nodes each pod gets its own by its score.
type podAffinity struct {
	session *framework.Session
	domains wellknown.Domains
	// answer is the last answer of topo-master, err its last error.
	answer topologyclient.Tree
	err    error
	// tree is made for the first job that needs it.
	tree *placement.Tree
	jobs map[api.JobID]*job
	// counting is true while the other plugins are asked which nodes take a pod.
	counting bool
}

// topologyMap is the client of topo-master. It outlives sessions, which see its last good answer and never wait for
// another.
type topologyMap struct {
	once   sync.Once
	client *topologyclient.Client
}

// builder returns what makes the plugin for a session. topo-master is polled from the first session on, until the
// context ends, with the arguments of that session.
//
// Arguments: map.address, map.caFile and map.tokenFile are where topo-master's GET
// /node_group is, the authority of its certificate and a bearer token for it; vendor and
// card are part of the names of the annotation and of the GPU resource, by default those of every known vendor.
func (m *topologyMap) builder(ctx context.Context, log *slog.Logger) framework.PluginBuilder {
	return func(arguments framework.Arguments) framework.Plugin {
		options := topologyclient.Options{URL: defaultMap, Log: log}
		domains := wellknown.AutoDomains()
		for key, to := range map[string]*string{
			"map.address": &options.URL, "map.caFile": &options.CAFile, "map.tokenFile": &options.TokenFile,
			"vendor": &domains.Vendor, "card": &domains.GPU,
		} {
			arguments.GetString(to, key)
		}
		p := &podAffinity{domains: domains, jobs: map[api.JobID]*job{}}
		m.once.Do(func() {
			m.client = topologyclient.New(options)
			go m.client.Run(ctx)
		})
		p.answer, p.err = m.client.Current()
		return p
	}
}

// Name returns the plugin's.
func (*podAffinity) Name() string { return podAffinityName }

// OnSessionOpen adds the plugin's functions.
func (p *podAffinity) OnSessionOpen(session *framework.Session) {
	p.session = session
	session.AddPrePredicateFn(podAffinityName, p.prePredicate)
	session.AddPredicateFn(podAffinityName, p.predicate)
	session.AddNodeOrderFn(podAffinityName, p.nodeOrder)
}

// OnSessionClose has nothing to do.
func (*podAffinity) OnSessionClose(*framework.Session) {}

// prePredicate runs once for each pod, one after the other, before any node is asked.
func (p *podAffinity) prePredicate(task *api.TaskInfo) error {
	j := p.session.Jobs[task.Job]
	if p.counting || j == nil {
		return nil
	}
	known := p.jobs[j.UID]
	if known == nil {
		known = p.read(j)
		p.jobs[j.UID] = known
	}
	switch {
	case known.size == 0 || known.err != nil:
		return known.err
	case known.nodes == nil || !p.hasRoom(task, known.nodes[task.UID]):
		known.nodes, known.err = p.plan(j, known.size)
	}
	if known.err == nil && known.nodes[task.UID] == "" {
		return errors.New("no room beyond the job's minAvailable")
	}
	if known.err != nil {
		// A job gets no more room before the session ends.
		known.err = fmt.Errorf("super-nodes of %d GPUs: %w", known.size, known.err)
	}
	return known.err
}

// hasRoom reports whether a node still has room for a pod.
func (p *podAffinity) hasRoom(task *api.TaskInfo, name string) bool {
	node := p.session.Nodes[name]
	return node != nil && task.InitResreq.LessEqual(node.Idle, api.Zero)
}

// predicate keeps the pods of a role to the nodes of the plan.
func (p *podAffinity) predicate(task *api.TaskInfo, node *api.NodeInfo) error {
	j := p.jobs[task.Job]
	if p.counting || j == nil || j.nodes == nil {
		return nil
	}
	for _, other := range p.session.Jobs[task.Job].Tasks {
		if other.TaskRole == task.TaskRole && j.nodes[other.UID] == node.Name {
			return nil
		}
	}
	// Nothing that can be evicted there would help.
	return api.NewFitErrWithStatus(task, node, &api.Status{
		Code: api.UnschedulableAndUnresolvable, Plugin: podAffinityName,
		Reason: "node(s) of another super-node than the job's",
	})
}

// nodeOrder prefers a pod's own node.
func (p *podAffinity) nodeOrder(task *api.TaskInfo, node *api.NodeInfo) (float64, error) {
	if j := p.jobs[task.Job]; j != nil && j.nodes[task.UID] == node.Name {
		return own, nil
	}
	return 0, nil
}
