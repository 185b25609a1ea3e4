package placement

import "slices"

// refuse tells how much of what must be placed would fit, and where.
func (p *planner) refuse(least int) *Refusal {
	j, t := &p.job, p.tree
	r := &Refusal{
		Reason: ReasonNoRoom, Want: j.placed() + least, Placed: j.placed(),
		Slice: j.gang.Slice, Level: j.gang.Require, OfPods: true,
	}
	if j.placed() > 0 {
		r.Reason = ReasonMembers
	}
	n := max(0, p.most(0, least))
	p.attempt(n)
	plan := p.plan()
	r.Fit = plan.Pods
	for _, rank := range j.pending[n:least] {
		if gpus := j.gang.Tasks[j.task[rank]].GPUs; gpus > 0 {
			r.OfPods = false
			r.Short += gpus
		}
	}
	if r.OfPods {
		r.Short = least - n
	}
	if at := plan.Group; r.Level != "" && plan.Pods > 0 {
		for at.Kind != r.Level && at.Parent > 0 {
			at = t.Group(at.Parent)
		}
		if plan.Group.Kind == kindNode && r.Level != kindNode {
			at, _ = t.Around(plan.Group.First, r.Level)
		}
		r.Group, r.Kind = at.Name, at.Kind
	}
	for _, barred := range j.gang.Avoid {
		if barred >= 0 && int(barred) < t.Len() {
			r.Avoided++
		}
	}
	p.look(r, &j.gang.Tasks[j.task[j.pending[n]]])
	return r
}

// look tells whether any node has room for one pod more, and counts the nodes
// with room for leading ones that are in no group of the required kind.
func (p *planner) look(r *Refusal, task *Task) {
	g, c := p.job.gang, p.job.room
	bit := p.tree.bit(g.Require)
	r.Task, r.NoNode = task.Name, true
	leading := c.Fit[p.job.classes[0]]
	for node, home := range p.tree.home {
		stranger := bit != 0 && p.tree.groups[home].inside&bit == 0
		room, counts := c.Fit[task.Class][node] > 0 && !stranger, leading[node] > 0 && stranger
		if !room && !counts || slices.Contains(g.Avoid, int32(node)) {
			continue
		}
		r.NoNode = r.NoNode && !room
		if counts {
			r.Outside++
		}
	}
}
