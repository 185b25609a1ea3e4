package fabric

import (
	"bufio"
	"encoding/hex"
	"io"
	"iter"
	"slices"
)

// Snapshot is the tree at one moment. It never changes; any number of
// goroutines may read it.
type Snapshot struct {
	// Child are the groups and the nodes in no group, sorted by name.
	Child []*Element
	// Nodes counts all nodes.
	Nodes Count

	size   int
	digest digest
}

// next is the snapshot after s, nil before the first. It is s itself if nothing
// is different.
func (s *Snapshot) next(children []*Element) *Snapshot {
	if s != nil && slices.Equal(s.Child, children) {
		return s
	}
	sum := summarize(children)
	return &Snapshot{
		Child: children, Nodes: sum.nodes, size: sum.size + max(len(children)-1, 0) + len("[]\n"), digest: sum.digest,
	}
}

// ETag is a strong entity tag: equal for equal bytes, on every replica and
// whatever came before.
func (s *Snapshot) ETag() string {
	sum := digestOf(s.digest.append(nil))
	return `"` + hex.EncodeToString(sum.append(nil)[:16]) + `"`
}

// Len is the length of what WriteTo writes, in bytes.
func (s *Snapshot) Len() int { return s.size }

// WriteTo writes the answer of GET /node_group: the list of top-level elements
// and a newline.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	return int64(s.size), WriteElements(w, s.Child)
}

// All are the elements, parents first, with the elements that hold them, top
// first. The list of holders is good until the next step only.
func (s *Snapshot) All() iter.Seq2[[]*Element, *Element] {
	return func(yield func([]*Element, *Element) bool) {
		descend(s.Child, make([]*Element, 0, MaxLevels), yield)
	}
}

func descend(list, holders []*Element, yield func([]*Element, *Element) bool) bool {
	for _, e := range list {
		if !yield(holders, e) || !descend(e.Child, append(holders, e), yield) {
			return false
		}
	}
	return true
}

// Select are the elements of that kind and that name, in the tree's order and
// with all that is below them; "" means any. An element below a selected one
// is not selected again.
func (s *Snapshot) Select(kind, name string) []*Element {
	var out []*Element
	var search func([]*Element)
	search = func(list []*Element) {
		for _, e := range list {
			if (kind == "" || e.Kind == kind) && (name == "" || e.Name == name) {
				out = append(out, e)
				continue
			}
			search(e.Child)
		}
	}
	search(s.Child)
	return out
}

// WriteElements writes selected elements as WriteTo writes all.
func WriteElements(to io.Writer, list []*Element) error {
	w := bufio.NewWriterSize(to, room)
	_ = w.WriteByte('[')
	writeList(w, list)
	_, _ = w.WriteString("]\n")
	return w.Flush()
}

// room is what is written at a time, in bytes: each write wakes the reader up.
const room = 64 << 10

// Findings are all that is not as it should be, by node.
func (s *Snapshot) Findings() []Finding {
	var out []Finding
	for _, e := range s.All() {
		out = append(out, e.Findings...)
	}
	sortFindings(out)
	return out
}
