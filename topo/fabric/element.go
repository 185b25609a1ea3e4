package fabric

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"
)

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
	// Child are sorted by name.
	Child []*Element
	// Nodes counts the nodes at and below the element.
	Nodes Count
	// Reasons are why a node is not Ready, the gravest first.
	Reasons []Reason
	// Findings are the faults of a node, in their order.
	Findings []Finding
	// Rails are the leaves that a leaf group expects, by rail and plane.
	Rails []Rail

	// body is the element as JSON; nil for a large group, which is head, its
	// children and tail.
	body       []byte
	head, tail string
	size       int
	digest     digest
}

// same reports whether two nodes' elements are equal.
func (e *Element) same(o *Element) bool {
	return e.Status == o.Status && e.Name == o.Name && sameFindings(e.Findings, o.Findings) &&
		slices.EqualFunc(e.Reasons, o.Reasons, func(a, b Reason) bool {
			return a.Kind == b.Kind && a.Count == b.Count && a.Since.Equal(b.Since)
		})
}

// Count is how many nodes are in which status.
type Count struct {
	Ready, Degraded, NotReady int
}

// Rail is the leaf that a group expects behind one rail and plane.
type Rail struct {
	Rail, Plane int32
	Leaf        Switch
}

// Reasons other than faults.
const (
	// ReasonNodeNotReady: the Node's condition Ready is not True.
	ReasonNodeNotReady = "node-not-ready"
	// ReasonStale: the last heartbeat is too old.
	ReasonStale = "stale"
	// ReasonClock: the heartbeat is from the future.
	ReasonClock = "clock"
)

// Reason is why a node is not Ready.
type Reason struct {
	// Kind is a Reason constant or a Fault.
	Kind string
	// Count is how many faults of that kind there are, 0 for the others.
	Count int
	// Since is when it began, of several faults the first; zero if the reports
	// do not contain it.
	Since time.Time
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
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	return strings.Compare(a.Key, b.Key)
}

// encodeNode makes the element's JSON.
func (e *Element) encodeNode() {
	b := make([]byte, 0, len(e.Name)+48)
	b = appendString(append(b, `{"name":`...), e.Name)
	b = appendString(append(b, `,"kind":`...), e.Kind)
	b = appendString(append(b, `,"status":`...), e.Status)
	b = append(b, '}')
	e.body = b
	e.size, e.digest = len(e.body), digestOf(e.body)
}

// joined is the size, in bytes, up to which a group's JSON is kept in one
// piece.
const joined = 16 << 10

func (e *Element) encodeGroup(s *summary) {
	head := appendString([]byte(`{"name":`), e.Name)
	head = appendString(append(head, `,"kind":`...), e.Kind)
	head = append(head, `,"child":[`...)
	tail := append(appendString([]byte(`],"status":`), e.Status), '}')
	e.size = len(head) + s.size + len(e.Child) - 1 + len(tail)
	e.digest = digestOf(s.digest.append(append(slices.Clone(head), tail...)))
	if e.size > joined {
		e.head, e.tail = string(head), string(tail)
		return
	}
	body := append(make([]byte, 0, e.size), head...)
	for i, c := range e.Child {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, c.body...) // Smaller than joined, so in one piece.
	}
	body = append(body, tail...)
	e.body = body
}

// write writes the element's JSON.
func (e *Element) write(w io.Writer) error {
	if e.body != nil {
		_, err := w.Write(e.body)
		return err
	}
	if _, err := io.WriteString(w, e.head); err != nil {
		return err
	}
	if err := writeList(w, e.Child); err != nil {
		return err
	}
	_, err := io.WriteString(w, e.tail)
	return err
}

func writeList(w io.Writer, list []*Element) error {
	for i, c := range list {
		if i > 0 {
			if _, err := io.WriteString(w, ","); err != nil {
				return err
			}
		}
		if err := c.write(w); err != nil {
			return err
		}
	}
	return nil
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
