package view

import (
	"iter"
	"maps"

	"github.com/heddle-dev/heddle/topo/master/facts"
)

// Detail is what is known of one node beside its place in the tree. Node is nil
// while only a report is there, Report while only a Node is.
type Detail struct {
	Node   *facts.Node
	Report *facts.Report
	// Used is how many GPUs pods hold.
	Used int32
}

// Believed is the report if it is about this node, else nil.
func (d Detail) Believed() *facts.Report {
	if d.Ignored() != "" {
		return nil
	}
	return d.Report
}

// Ignored says why the report is not believed, "" if it is or if there is
// none. What a report says about itself must agree with the Node of its name,
// which the admission policy lets only that node's worker write.
func (d Detail) Ignored() string {
	switch {
	case d.Report == nil:
		return ""
	case d.Node == nil:
		return "there is no Node of that name"
	case d.Report.Owner == facts.ID{}:
		return "it is not owned by the Node of its name"
	case d.Report.Owner != d.Node.ID:
		return "it is owned by another Node, or by an earlier one of its name"
	}
	return ""
}

// shards is how many parts a table has: a change copies one of them.
const shards = 256

// Table maps names of nodes to details. It never changes.
type Table struct{ parts [shards]map[string]Detail }

// Of is what is known of a node.
func (t *Table) Of(name string) (Detail, bool) {
	d, ok := t.parts[shard(name)][name]
	return d, ok
}

// All are the details in no order.
func (t *Table) All() iter.Seq2[string, Detail] {
	return func(yield func(string, Detail) bool) {
		for _, part := range t.parts {
			for name, d := range part {
				if !yield(name, d) {
					return
				}
			}
		}
	}
}

// Draft is a table that is being changed, by one goroutine. The zero value is
// an empty one.
type Draft struct {
	parts [shards]map[string]Detail
	mine  [shards]bool
	last  *Table
}

// Of is what the draft knows of a node.
func (d *Draft) Of(name string) (Detail, bool) {
	v, ok := d.parts[shard(name)][name]
	return v, ok
}

// Set replaces what is known of a node; nothing to know removes it.
func (d *Draft) Set(name string, v Detail) {
	i := shard(name)
	if !d.mine[i] {
		d.parts[i], d.mine[i], d.last = maps.Clone(d.parts[i]), true, nil
	}
	if v.Node == nil && v.Report == nil {
		delete(d.parts[i], name)
		return
	}
	if d.parts[i] == nil {
		d.parts[i] = map[string]Detail{}
	}
	d.parts[i][name] = v
}

// Names calls visit with every name.
func (d *Draft) Names(visit func(name string, v Detail)) {
	for _, part := range d.parts {
		for name, v := range part {
			visit(name, v)
		}
	}
}

// Table is the draft as it is now. The draft can be changed on.
func (d *Draft) Table() *Table {
	if d.last == nil {
		d.last, d.mine = &Table{parts: d.parts}, [shards]bool{}
	}
	return d.last
}

// shard is FNV-1a, folded.
func shard(name string) uint8 {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return uint8(h ^ h>>8 ^ h>>16 ^ h>>24) //nolint:gosec // The low byte is meant.
}
