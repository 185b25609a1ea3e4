package snapshot

import (
	"iter"
	"maps"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/informers"
)

// Detail is what is known of one node beside its place in the tree. Node is nil
// while only a report is there, Report while only a Node is.
type Detail struct {
	Node   *informers.Node
	Report *informers.Report
	// Used is how many GPUs pods hold.
	Used int32
}

// Believed is the report if it is about this node, else nil.
func (d Detail) Believed() *informers.Report {
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
	case d.Report.Owner == informers.ID{}:
		return "it is not owned by the Node of its name"
	case d.Report.Owner != d.Node.ID:
		return "it is owned by another Node, or by an earlier one of its name"
	}
	return ""
}

// shards is how many parts a table has: a change copies one of them.
const shards = 256

// Table maps names of nodes to details. It never changes.
type Table = table[Detail]

// GangTable maps gangs, as "namespace/name", to their members in no order. It
// never changes.
type GangTable = table[[]*gang.Member]

type table[V any] struct{ parts [shards]map[string]V }

// Of is what is known of a name.
func (t *table[V]) Of(name string) (V, bool) {
	v, ok := t.parts[shard(name)][name]
	return v, ok
}

// All is everything, in no order.
func (t *table[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, part := range t.parts {
			for name, v := range part {
				if !yield(name, v) {
					return
				}
			}
		}
	}
}

// Draft is a Table that is being changed, by one goroutine. The zero value is
// an empty one.
type Draft struct{ draft[Detail] }

// Set replaces what is known of a node; nothing to know removes it.
func (d *Draft) Set(name string, v Detail) {
	if v.Node == nil && v.Report == nil {
		d.Delete(name)
		return
	}
	d.draft.Set(name, v)
}

// GangDraft is a GangTable that is being changed, by one goroutine. The zero
// value is an empty one.
type GangDraft = draft[[]*gang.Member]

type draft[V any] struct {
	parts [shards]map[string]V
	mine  [shards]bool
	last  *table[V]
}

// Of is what the draft knows of a name.
func (d *draft[V]) Of(name string) (V, bool) {
	v, ok := d.parts[shard(name)][name]
	return v, ok
}

// Set replaces what is known of a name.
func (d *draft[V]) Set(name string, v V) {
	part := d.own(shard(name))
	if *part == nil {
		*part = map[string]V{}
	}
	(*part)[name] = v
}

// Delete forgets a name.
func (d *draft[V]) Delete(name string) { delete(*d.own(shard(name)), name) }

// own is a part that no table has.
func (d *draft[V]) own(i uint8) *map[string]V {
	if !d.mine[i] {
		d.parts[i], d.mine[i], d.last = maps.Clone(d.parts[i]), true, nil
	}
	return &d.parts[i]
}

// Names calls visit with every name.
func (d *draft[V]) Names(visit func(name string, v V)) {
	for _, part := range d.parts {
		for name, v := range part {
			visit(name, v)
		}
	}
}

// Table is the draft as it is now. The draft can be changed on.
func (d *draft[V]) Table() *table[V] {
	if d.last == nil {
		d.last, d.mine = &table[V]{parts: d.parts}, [shards]bool{}
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
