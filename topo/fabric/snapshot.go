package fabric

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
)

// Snapshot is the tree at one moment. It never changes; any number of
// goroutines may read it.
type Snapshot struct {
	// Child are the groups and the nodes in no group, sorted by name.
	Child []*Element
	// Nodes counts all nodes.
	Nodes Count

	size    int
	content *content
}

// content is what depends on the answer's bytes alone, so that snapshots with
// equal bytes share it.
type content struct {
	digest digest
	etag   string
	gzip   func() ([]byte, error)
}

// next is the snapshot after s, nil before the first. It is s itself if nothing
// is different.
func (s *Snapshot) next(children []*Element) *Snapshot {
	if s != nil && slices.Equal(s.Child, children) {
		return s
	}
	sum := summarize(children)
	now := &Snapshot{Child: children, Nodes: sum.nodes, size: sum.size + max(len(children)-1, 0) + len("[]\n")}
	if s != nil && s.content.digest == sum.digest {
		now.content = s.content
		return now
	}
	now.content = &content{digest: sum.digest, etag: etag(sum.digest)}
	now.content.gzip = sync.OnceValues(now.compress)
	return now
}

func etag(d digest) string {
	sum := digestOf(d.append(nil))
	return `"` + hex.EncodeToString(sum.append(nil)[:16]) + `"`
}

// ETag is a strong entity tag: equal for equal bytes, on every replica and
// whatever came before.
func (s *Snapshot) ETag() string { return s.content.etag }

// Len is the length of what WriteTo writes, in bytes.
func (s *Snapshot) Len() int { return s.size }

// WriteTo writes the answer of GET /node_group: the list of top-level elements
// and a newline. After an error it counts no bytes.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	if err := WriteElements(w, s.Child); err != nil {
		return 0, err
	}
	return int64(s.size), nil
}

// Gzip is what WriteTo writes, compressed at the first call for this content.
// It is shared: not to be written to.
func (s *Snapshot) Gzip() ([]byte, error) { return s.content.gzip() }

func (s *Snapshot) compress() ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress the tree: %w", err)
	}
	if _, err := s.WriteTo(z); err != nil {
		return nil, fmt.Errorf("compress the tree: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress the tree: %w", err)
	}
	return bytes.Clone(b.Bytes()), nil
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
func WriteElements(w io.Writer, list []*Element) error {
	if _, err := io.WriteString(w, "["); err != nil {
		return err
	}
	if err := writeList(w, list); err != nil {
		return err
	}
	_, err := io.WriteString(w, "]\n")
	return err
}

// Findings are all that is not as it should be, by node.
func (s *Snapshot) Findings() []Finding {
	var out []Finding
	for _, e := range s.All() {
		out = append(out, e.Findings...)
	}
	sortFindings(out)
	return out
}
