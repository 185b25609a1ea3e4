package fabric

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Snapshot is the tree at one moment. It never changes; any number of
// goroutines may read it.
type Snapshot struct {
	// Child are the groups and the nodes in no group, sorted by name.
	Child []*Element
	// Crossing are the NVLink domains that no group of the fabric holds and that
	// hold none, sorted by name. Child has their nodes where the fabric has them.
	Crossing []*Element
	// Nodes counts all nodes.
	Nodes Count

	size   int
	digest digest
}

// next is the snapshot after s, nil before the first. It is s itself if nothing
// is different.
func (s *Snapshot) next(children, crossing []*Element) *Snapshot {
	if s != nil && slices.Equal(s.Child, children) && slices.Equal(s.Crossing, crossing) {
		return s
	}
	sum := summarize(children)
	return &Snapshot{
		Child: children, Crossing: crossing, Nodes: sum.nodes, digest: sum.digest,
		size: sum.size + max(len(children)-1, 0) + len("[]\n"),
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
// with all that is below them, and last NVLink domains that cross the tree's
// groups; "" means any. An element below a selected one is not selected again.
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
	if kind != "" || name != "" {
		for _, e := range s.Crossing {
			if (kind == "" || e.Kind == kind) && (name == "" || e.Name == name) {
				out = append(out, e)
			}
		}
	}
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

// Element is a group or a node of a snapshot. It never changes.
type Element struct {
	Name, Kind string
	// Status is Ready, NotReady or Degraded. A node is NotReady if its Node
	// is, else Degraded if it has a reason to be. A group is Ready or NotReady
	// if all its children are, else Degraded.
	Status string
	// Key is what the group is known by: the ID of its anchor switch, an
	// NVLink domain, the name that its path gave. Empty for nodes.
	Key string
	// NVLink is set if the group is an NVLink domain.
	NVLink bool
	// Child are sorted by name.
	Child []*Element
	// Nodes counts the nodes at and below the element.
	Nodes Count
	// Reasons are why a node is not Ready, or what the tree cannot know of it,
	// the gravest first.
	Reasons []Reason
	// Findings are the faults of a node, in their order.
	Findings []Finding
	// Rails are the leaves that a leaf group expects, by rail and plane.
	Rails []Rail

	// body is the JSON of a group that is not large; size and digest are of any
	// element's.
	body   []byte
	size   int
	digest digest
}

// same reports whether two nodes' elements are equal.
func (e *Element) same(o *Element) bool {
	return e.Status == o.Status && slices.Equal(e.Findings, o.Findings) && slices.Equal(e.Reasons, o.Reasons)
}

// Count is how many nodes are in which status.
type Count struct {
	Ready    int `json:"ready"`
	Degraded int `json:"degraded"`
	NotReady int `json:"notReady"`
}

// Rail is the leaf that a group expects behind one rail and plane.
type Rail struct {
	Rail  int32  `json:"rail"`
	Plane int32  `json:"plane,omitempty"`
	Leaf  Switch `json:"leaf"`
}

// Reasons other than faults.
const (
	// ReasonNodeNotReady: the Node's condition Ready is not True.
	ReasonNodeNotReady = "node-not-ready"
	// ReasonStale: the last heartbeat is too old.
	ReasonStale = "stale"
	// ReasonClock: the heartbeat is from the future.
	ReasonClock = "clock"
	// ReasonSource: a source of the report is silent, and its last good answer
	// stands. The node is as Ready as before: cables do not move because a
	// server is silent.
	ReasonSource = "source-stale"
)

// degrades reports whether a node with that reason is not as it should be.
// The others only explain what the tree shows.
func (r Reason) degrades() bool { return r.Kind != ReasonSource && r.Kind != string(Unseen) }

// Reason is why a node is not Ready, or what the tree cannot know of it.
type Reason struct {
	// Kind is a Reason constant or a Fault.
	Kind string `json:"kind"`
	// Count is how many faults of that kind there are, 0 for the others.
	Count int `json:"count,omitempty"`
	// Since is when it began, in UTC, of several faults the first; zero if the
	// reports do not contain it.
	Since time.Time `json:"since,omitzero"`
}

// digest stands for an element's JSON. Sums of digests stand for lists of
// children: they are sorted, and no two are equal.
type digest [4]uint64

func digestOf(b []byte) digest {
	sum := sha256.Sum256(b)
	var d digest
	for i := range d {
		d[i] = binary.LittleEndian.Uint64(sum[8*i:])
	}
	return d
}

func (d *digest) add(o digest) {
	for i := range d {
		d[i] += o[i]
	}
}

func (d *digest) append(b []byte) []byte {
	for _, v := range d {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// compareElements orders children: by name; a group and a node of one name
// are two.
func compareElements(a, b *Element) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Key, b.Key))
}

// joined is the size, in bytes, up to which a group's JSON is kept in one
// piece.
const joined = 16 << 10

// encode makes what depends on the JSON, of which sum is that of the children.
func (e *Element) encode(sum *summary) {
	frame := e.closing(e.opening(nil))
	if e.Kind == v1alpha1.KindNode {
		e.size, e.digest = len(frame), digestOf(frame)
		return
	}
	e.size, e.digest = len(frame)+sum.size+len(e.Child)-1, digestOf(sum.digest.append(frame))
	if e.size <= joined {
		e.body = e.append(make([]byte, 0, e.size))
	}
}

// opening appends the JSON up to the children, closing what follows them.
func (e *Element) opening(b []byte) []byte {
	b = appendString(append(b, `{"name":`...), e.Name)
	b = appendString(append(b, `,"kind":`...), e.Kind)
	if e.Kind != v1alpha1.KindNode {
		b = append(b, `,"child":[`...)
	}
	return b
}

func (e *Element) closing(b []byte) []byte {
	if e.Kind != v1alpha1.KindNode {
		b = append(b, ']')
	}
	return append(appendString(append(b, `,"status":`...), e.Status), '}')
}

// append appends the JSON.
func (e *Element) append(b []byte) []byte {
	if e.body != nil {
		return append(b, e.body...)
	}
	b = e.opening(b)
	for i, c := range e.Child {
		if i > 0 {
			b = append(b, ',')
		}
		b = c.append(b)
	}
	return e.closing(b)
}

// write writes the JSON. The writer keeps its first error.
func (e *Element) write(w *bufio.Writer) {
	if e.size <= joined {
		_, _ = w.Write(e.append(w.AvailableBuffer()))
		return
	}
	_, _ = w.Write(e.opening(w.AvailableBuffer()))
	writeList(w, e.Child)
	_, _ = w.Write(e.closing(w.AvailableBuffer()))
}

func writeList(w *bufio.Writer, list []*Element) {
	for i, c := range list {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		c.write(w)
	}
}

// appendString appends s as encoding/json writes it.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			quoted, err := json.Marshal(s)
			if err != nil { // Strings always can be.
				quoted = []byte(`""`)
			}
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
