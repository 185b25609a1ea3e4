package placement

import "slices"

// job is a gang as the planner sees it: the pods that need a node, and of
// which of them the nodes' room is counted.
type job struct {
	gang *Gang
	room *Capacity
	// ranks is how many pods the gang has; pending are those without a node.
	ranks   int
	pending []int32
	// task is each rank's.
	task []int32
	// at is where the placed ranks are: a node, None, or waiting.
	at []int32
	// block is how many ranks go into one lowest group; 1 without slices.
	block int
	// lead tells of each task whether its pods are counted together, as pods
	// of one class. These have most of the gang's GPUs; the others are guests
	// beside them.
	lead []bool
	// classes are those of the leading tasks.
	classes []int32
	guests  bool
}

// waiting stands in job.at for a rank without a node.
const waiting = None - 1

// read checks the gang against the tree and lays it out.
func (j *job) read(t *Tree, g *Gang, c *Capacity) *Refusal {
	j.gang, j.room, j.ranks = g, c, 0
	if refusal := check(t, g, c); refusal != nil {
		return refusal
	}
	for i := range g.Tasks {
		j.ranks += g.Tasks[i].Pods
	}
	j.task, j.at, j.pending = j.task[:0], j.at[:0], j.pending[:0]
	for i := range g.Tasks {
		for range g.Tasks[i].Pods {
			j.task, j.at = append(j.task, int32(i)), append(j.at, waiting)
		}
	}
	for _, m := range g.Placed {
		if m.Rank < 0 || m.Rank >= j.ranks {
			continue
		}
		j.at[m.Rank] = None
		if m.Node >= 0 && int(m.Node) < t.Len() {
			j.at[m.Rank] = m.Node
		}
	}
	for rank, at := range j.at {
		if at == waiting {
			j.pending = append(j.pending, int32(rank))
		}
	}
	j.block = 1
	j.chooseLead()
	if g.Slice > 0 {
		return j.slice()
	}
	return nil
}

// maxRanks bounds a gang; a cluster has not as many nodes.
const maxRanks = 1 << 20

// check refuses what can never be planned on this map.
func check(t *Tree, g *Gang, c *Capacity) *Refusal {
	ranks := 0
	for i := range g.Tasks {
		k := &g.Tasks[i]
		switch {
		case k.Pods < 0 || k.GPUs < 0 || k.Pods > maxRanks:
			return invalid("task %q has %d pods with %d GPUs each", k.Name, k.Pods, k.GPUs)
		case k.Class < 0 || k.Class >= len(c.Fit):
			return invalid("task %q is of class %d, and room is known for %d", k.Name, k.Class, len(c.Fit))
		case len(c.Fit[k.Class]) != t.Len():
			return invalid("room is known for %d nodes, the map has %d", len(c.Fit[k.Class]), t.Len())
		}
		ranks += k.Pods
	}
	switch {
	case c.Free != nil && len(c.Free) != t.Len():
		return invalid("it is known of %d nodes what is free, the map has %d", len(c.Free), t.Len())
	case ranks == 0:
		return invalid("the gang has no pods")
	case ranks > maxRanks:
		return invalid("the gang has %d pods, more than %d", ranks, maxRanks)
	case g.MinMember > ranks:
		return invalid("%d members must run, and the gang has %s", g.MinMember, count(ranks, "pod"))
	case g.Slice < 0:
		return invalid("a slice of %d GPUs", g.Slice)
	case g.Require != "" && g.Require != kindNode && t.bit(g.Require) == 0:
		return invalid("no group of the map is a %s; it has %s", g.Require, kindsOf(t))
	}
	return nil
}

// chooseLead finds the class that has most of the gang's GPUs, of those most
// of its pods, and the classes that nodes have the same room for.
func (j *job) chooseLead() {
	tasks := j.gang.Tasks
	lead, most, pods := 0, -1, -1
	for i := range tasks {
		gpus := tasks[i].Pods * tasks[i].GPUs
		if gpus > most || gpus == most && tasks[i].Pods > pods {
			lead, most, pods = i, gpus, tasks[i].Pods
		}
	}
	j.lead, j.classes, j.guests = j.lead[:0], j.classes[:0], false
	for i := range tasks {
		same := tasks[i].GPUs == tasks[lead].GPUs && slices.Equal(j.room.Fit[tasks[i].Class], j.room.Fit[tasks[lead].Class])
		j.join(i, same || j.gang.Slice > 0 && tasks[i].GPUs > 0)
	}
}

// join notes whether a task is one of those that lead.
func (j *job) join(task int, leads bool) {
	j.lead = append(j.lead, leads)
	class := int32(j.gang.Tasks[task].Class) //nolint:gosec // check compared it with the classes.
	switch {
	case !leads:
		j.guests = j.guests || j.gang.Tasks[task].Pods > 0
	case !slices.Contains(j.classes, class):
		j.classes = append(j.classes, class)
	}
}

// slice finds how many ranks are a block.
func (j *job) slice() *Refusal {
	gpus := 0
	for i := range j.gang.Tasks {
		k := &j.gang.Tasks[i]
		switch {
		case k.GPUs == 0 || k.Pods == 0:
		case gpus == 0:
			gpus = k.GPUs
		case gpus != k.GPUs:
			return invalid("slices of %d GPUs, and pods that ask for %d and for %d", j.gang.Slice, gpus, k.GPUs)
		}
	}
	switch {
	case gpus == 0:
		return invalid("slices of %d GPUs, and no pod asks for one", j.gang.Slice)
	case j.gang.Slice%gpus != 0:
		return invalid("slices of %d GPUs are no multiple of the %s of a pod", j.gang.Slice, count(gpus, "GPU"))
	}
	j.block = j.gang.Slice / gpus
	return nil
}

// want is how many pods must have a node.
func (j *job) want() int {
	if j.gang.MinMember > 0 {
		return j.gang.MinMember
	}
	return j.ranks
}

// placed is how many have one.
func (j *job) placed() int { return j.ranks - len(j.pending) }
