package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// demand is a gang laid out by rank.
type demand struct {
	gang *Gang
	room *Capacity
	// task is the task of each rank.
	task []int32
	// at is the node of each placed rank, None, or waiting.
	at []int32
	// pending are the ranks without a node.
	pending []int32
	// primary are the ranks of the primary tasks: their pods have most of the
	// gang's GPUs and count as pods of one class. The others are secondary.
	primary []int32
	// isPrimary is by task; classes are those of the primary tasks.
	isPrimary []bool
	classes   []int32
	// block is how many ranks go into one lowest group; 1 without slices.
	block int
}

// waiting stands in demand.at for a rank without a node.
const waiting = None - 1

// read checks the gang against the tree and lays it out.
func (d *demand) read(t *Tree, g *Gang, c *Capacity) error {
	if err := check(t, g, c); err != nil {
		return err
	}
	d.gang, d.room = g, c
	d.choosePrimary()
	d.task, d.at, d.pending, d.primary = d.task[:0], d.at[:0], d.pending[:0], d.primary[:0]
	for i := range g.Tasks {
		for range g.Tasks[i].Pods {
			if d.isPrimary[i] {
				d.primary = append(d.primary, int32(len(d.at))) //nolint:gosec // At most maxRanks.
			}
			d.task, d.at = append(d.task, int32(i)), append(d.at, waiting)
		}
	}
	for _, m := range g.Placed {
		if m.Rank < 0 || m.Rank >= len(d.at) {
			continue
		}
		d.at[m.Rank] = None
		if m.Node >= 0 && m.Node < t.nodes() {
			d.at[m.Rank] = m.Node
		}
	}
	for rank, at := range d.at {
		if at == waiting {
			d.pending = append(d.pending, int32(rank))
		}
	}
	return d.slice()
}

// maxRanks bounds a gang; a cluster has not as many nodes.
const maxRanks = 1 << 20

// check rejects what can never be planned on this tree.
func check(t *Tree, g *Gang, c *Capacity) error {
	ranks := 0
	for i := range g.Tasks {
		k := &g.Tasks[i]
		switch {
		case k.Pods < 0 || k.GPUs < 0 || k.Pods > maxRanks:
			return fmt.Errorf("task %q has %d pods with %d GPUs each", k.Name, k.Pods, k.GPUs)
		case k.Class < 0 || k.Class >= len(c.Fit):
			return fmt.Errorf("task %q is of class %d, and capacity has %d", k.Name, k.Class, len(c.Fit))
		case len(c.Fit[k.Class]) != t.Len():
			return fmt.Errorf("capacity has %d nodes, the topology tree %d", len(c.Fit[k.Class]), t.Len())
		}
		ranks += k.Pods
	}
	switch {
	case c.Free != nil && len(c.Free) != t.Len():
		return fmt.Errorf("free capacity has %d nodes, the topology tree %d", len(c.Free), t.Len())
	case ranks == 0:
		return errors.New("the gang has no pods")
	case ranks > maxRanks:
		return fmt.Errorf("the gang has %d pods, more than %d", ranks, maxRanks)
	case g.MinMember > ranks:
		return fmt.Errorf("%d members must run, and the gang has %s", g.MinMember, count(ranks, "pod"))
	case g.Slice < 0:
		return fmt.Errorf("a slice of %d GPUs", g.Slice)
	case g.Require != "" && g.Require != kindNode && t.bit(g.Require) == 0:
		kinds := "no groups"
		if len(t.kinds) > 0 {
			kinds = strings.Join(t.Kinds(), ", ")
		}
		return fmt.Errorf("the topology has no %s; it has %s", g.Require, kinds)
	}
	return nil
}

// choosePrimary finds the task that has most of the gang's GPUs, of those most
// of its pods, and the tasks that nodes have the same room for.
func (d *demand) choosePrimary() {
	tasks := d.gang.Tasks
	first, most, pods := 0, -1, -1
	for i := range tasks {
		gpus := tasks[i].Pods * tasks[i].GPUs
		if gpus > most || gpus == most && tasks[i].Pods > pods {
			first, most, pods = i, gpus, tasks[i].Pods
		}
	}
	d.isPrimary, d.classes = d.isPrimary[:0], d.classes[:0]
	for i := range tasks {
		alike := tasks[i].GPUs == tasks[first].GPUs &&
			slices.Equal(d.room.Fit[tasks[i].Class], d.room.Fit[tasks[first].Class])
		primary := alike || d.gang.Slice > 0 && tasks[i].GPUs > 0
		d.isPrimary = append(d.isPrimary, primary)
		if class := d.class(i); primary && !slices.Contains(d.classes, class) {
			d.classes = append(d.classes, class)
		}
	}
}

// slice finds how many ranks are a block.
func (d *demand) slice() error {
	d.block = 1
	size, gpus := d.gang.Slice, 0
	if size == 0 {
		return nil
	}
	for i := range d.gang.Tasks {
		k := &d.gang.Tasks[i]
		switch {
		case k.GPUs == 0 || k.Pods == 0:
		case gpus == 0:
			gpus = k.GPUs
		case gpus != k.GPUs:
			return fmt.Errorf("slices of %d GPUs, and pods that ask for %d and for %d", size, gpus, k.GPUs)
		}
	}
	switch {
	case gpus == 0:
		return fmt.Errorf("slices of %d GPUs, and no pod asks for one", size)
	case size%gpus != 0:
		return fmt.Errorf("slices of %d GPUs are no multiple of the %s of a pod", size, count(gpus, "GPU"))
	}
	d.block = size / gpus
	return nil
}

// class is that of a task; check compared it with the classes of the capacity.
func (d *demand) class(task int) int32 { return int32(d.gang.Tasks[task].Class) } //nolint:gosec // See above.

// placed is how many pods have a node.
func (d *demand) placed() int { return len(d.at) - len(d.pending) }

// least is how many pending pods must get one.
func (d *demand) least() int {
	want := d.gang.MinMember
	if want <= 0 {
		want = len(d.at)
	}
	return max(0, want-d.placed())
}
