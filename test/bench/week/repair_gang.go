package week

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/suspect"
)

// ended notes how a run went; at the end of the week it may go on.
func (r *repairs) ended(g *gang, well bool) {
	if at, is := r.broken[g]; is && g.nodes != nil && (well || r.now-g.began >= time.Hour) {
		delete(r.broken, g)
		if r.buggy[g] {
			return
		}
		r.result.Whole = append(r.result.Whole, g.began-at)
		r.result.Lost += (g.began - at).Hours() * float64(g.pods)
	}
}

// fail ends a run. Some pods report it; the others are deleted with them, as are all pods of a lost node.
func (r *repairs) fail(g *gang, e *event) {
	r.ended(g, false)
	first, rank := r.rng.IntN(g.pods), -1
	r.report(g, func(p *suspect.Pod) {
		rank++
		lost := e.kind == failure && g.nodes[rank] == e.node
		if p.End = r.clock(); !lost && (rank == first || r.rng.IntN(3) == 0) {
			p.Failure = "exit code 1"
		}
	})
	if e.gang != nil && slices.Contains(g.nodes, r.bad) && !r.buggy[g] {
		r.onBad[g] = true
		if !r.avoided {
			r.before[g] = true
		}
	}
	// What ran for an hour has saved its state.
	if ran := r.now - g.began; ran >= time.Hour {
		g.duration -= ran.Truncate(time.Hour)
	}
	r.stop(g)
	if _, is := r.broken[g]; !is {
		r.broken[g] = r.now
	}
	if r.tries[g]++; r.buggy[g] && r.tries[g] > retries {
		return
	}
	if !r.buggy[g] {
		r.result.Failures++
	}
	r.waiting = append(r.waiting, g)
}

// schedule starts the gangs that fit, the oldest first.
func (r *repairs) schedule() {
	slices.SortFunc(r.waiting, func(a, b *gang) int { return cmp.Or(cmp.Compare(a.at, b.at), byID(a, b)) })
	r.waiting = slices.DeleteFunc(r.waiting, func(g *gang) bool {
		nodes := r.nodesFor(g)
		if nodes == nil {
			return false
		}
		r.start(g, nodes, g.duration, 0)
		r.report(g, func(*suspect.Pod) {})
		if r.buggy[g] {
			r.push(event{at: r.now + r.between(1, 10), kind: crash, gang: g, run: g.run})
		} else if slices.ContainsFunc(nodes, func(n int32) bool { return r.sick[n] }) {
			r.infect(g)
		}
		return true
	})
}

// nodesFor plans a gang as heddle-scheduler does: around as many suspects as there is other room for, around those
// that are not sure only at the same tier.
func (r *repairs) nodesFor(g *gang) []int32 {
	ask := Ask{Pods: g.pods, GPUs: g.gpus}
	plan := r.place.plan(r.cluster, &ask)
	if plan.Nodes == nil || r.care == Careless {
		return plan.Nodes
	}
	names, sure := r.memory.Avoid(fmt.Sprint(g.id), r.clock())
	var suspects []int32
	for _, name := range names {
		id, _ := r.cluster.tree.ID(name)
		suspects = append(suspects, id)
	}
	kind, uses := plan.Group.Kind, func(n int32) bool { return slices.Contains(suspects, n) }
	if !slices.ContainsFunc(plan.Nodes, uses) {
		return plan.Nodes
	}
	sort.Search(len(suspects), func(used int) bool {
		ask.Avoid = suspects[:len(suspects)-used]
		other := r.place.plan(r.cluster, &ask)
		enough := other.Nodes != nil && (len(ask.Avoid) <= sure || other.Group.Kind == kind)
		if enough {
			plan = other
		}
		return enough
	})
	if slices.Contains(plan.Nodes, r.bad) && slices.Contains(suspects, r.bad) && g.pods > 1 {
		r.result.Forced++
	}
	return plan.Nodes
}

// report tells the memory of the pods of the current run, as they are once changed.
func (r *repairs) report(g *gang, change func(*suspect.Pod)) {
	if r.care == Careless {
		return
	}
	for rank, node := range g.nodes {
		p := suspect.Pod{
			UID: types.UID(fmt.Sprintf("%d-%d-%d", g.id, g.run, rank)), Gang: fmt.Sprint(g.id),
			Node: r.name(node), Start: time.Unix(0, 0).Add(g.began),
		}
		change(&p)
		r.memory.See(p)
	}
}

// look notes who is suspect now.
func (r *repairs) look() {
	for _, p := range r.memory.Places(r.clock()) {
		healthy := func(name string) bool {
			id, _ := r.cluster.tree.ID(name)
			return !r.ill[id]
		}
		r.avoided = r.avoided || r.bad != nowhere && p.Name == r.name(r.bad)
		nodes := p.Nodes
		if p.Kind == suspect.KindNode {
			nodes = []string{p.Name}
		}
		if p.State == suspect.Suspect && !slices.ContainsFunc(nodes, func(n string) bool { return !healthy(n) }) {
			r.wrong[p.Name] = true
		}
	}
}
