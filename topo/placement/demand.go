package placement

import (
	"cmp"
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
	// isPrimary is indexed by task; classes lists the classes of the primary tasks.
	isPrimary []bool
	classes   []int
	// block is the number of ranks in one lowest group; 1 without slices.
	block int
}

// waiting stands in demand.at for a rank without a node.
const waiting = None - 1

// read checks the gang against the tree and lays it out.
func (d *demand) read(t *Tree, g *Gang, c *Capacity) error {
	d.gang, d.room, d.block = g, c, 1
	d.task, d.at, d.pending, d.primary = d.task[:0], d.at[:0], d.pending[:0], d.primary[:0]
	for i := range g.Tasks {
		for range g.Tasks[i].Pods {
			d.task, d.at = append(d.task, int32(i)), append(d.at, waiting)
		}
	}
	if err := d.check(t); err != nil {
		return err
	}
	d.choosePrimary()
	for _, m := range g.Placed {
		d.at[m.Rank] = m.Node
	}
	for rank, at := range d.at {
		if at == waiting {
			d.pending = append(d.pending, int32(rank))
		}
		if d.isPrimary[d.task[rank]] {
			d.primary = append(d.primary, int32(rank))
		}
	}
	return nil
}

// check rejects what can never be planned on this tree, and finds how many ranks
// are a block.
func (d *demand) check(t *Tree) error {
	g, size := d.gang, d.gang.Slice
	var gpus []int // What the pods ask for.
	for _, k := range g.Tasks {
		if size > 0 && k.GPUs > 0 && k.Pods > 0 && !slices.Contains(gpus, k.GPUs) {
			gpus = append(gpus, k.GPUs)
		}
	}
	switch {
	case len(d.at) == 0:
		return errors.New("the gang has no pods")
	case g.MinMember > len(d.at):
		return fmt.Errorf("%d members must run, and the gang has %s", g.MinMember, count(len(d.at), "pod"))
	case g.Require != "" && g.Require != kindNode && t.bit(g.Require) == 0:
		return fmt.Errorf("the topology has no %s; it has %s", g.Require, cmp.Or(strings.Join(t.kinds, ", "), "no groups"))
	case size == 0:
	case len(gpus) == 0:
		return fmt.Errorf("slices of %d GPUs, and no pod asks for one", size)
	case len(gpus) > 1:
		return fmt.Errorf("slices of %d GPUs, and pods that ask for %d and for %d", size, gpus[0], gpus[1])
	case size%gpus[0] != 0:
		return fmt.Errorf("invalid slice size %d: want a multiple of the %s of a pod", size, count(gpus[0], "GPU"))
	default:
		d.block = size / gpus[0]
	}
	return nil
}

// choosePrimary finds the task that has most of the gang's GPUs, of those most
// of its pods, and the tasks that nodes have the same room for.
func (d *demand) choosePrimary() {
	tasks := d.gang.Tasks
	first := slices.MaxFunc(tasks, func(a, b Task) int {
		return cmp.Or(cmp.Compare(a.Pods*a.GPUs, b.Pods*b.GPUs), cmp.Compare(a.Pods, b.Pods))
	})
	d.isPrimary, d.classes = d.isPrimary[:0], d.classes[:0]
	for _, k := range tasks {
		alike := k.GPUs == first.GPUs && slices.Equal(d.room.Fit[k.Class], d.room.Fit[first.Class])
		primary := alike || d.gang.Slice > 0 && k.GPUs > 0
		d.isPrimary = append(d.isPrimary, primary)
		if primary && !slices.Contains(d.classes, k.Class) {
			d.classes = append(d.classes, k.Class)
		}
	}
}

// placed returns how many pods have a node.
func (d *demand) placed() int { return len(d.at) - len(d.pending) }

// least returns how many pending pods must get one.
func (d *demand) least() int {
	if d.gang.MinMember <= 0 {
		return len(d.pending)
	}
	return max(0, d.gang.MinMember-d.placed())
}
