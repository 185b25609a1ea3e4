package fabric

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Snapshot is the tree at one moment. It never changes; any number of goroutines may read it.
type Snapshot struct {
	// Child are the groups and the nodes in no group, sorted by name.
	Child []*Element
	// Crossing are the NVLink domains that no group of the fabric holds and that hold none, sorted by name. Child has
	// their nodes where the fabric has them.
	Crossing []*Element
	// Nodes counts all nodes.
	Nodes Count
}

// next returns the snapshot after s, nil before the first. It is s itself if nothing is different.
func (s *Snapshot) next(children, crossing []*Element) *Snapshot {
	if s != nil && slices.Equal(s.Child, children) && slices.Equal(s.Crossing, crossing) {
		return s
	}
	out := &Snapshot{Child: children, Crossing: crossing}
	for _, e := range children {
		out.Nodes.add(e.Nodes)
	}
	return out
}

// ETag returns a strong entity tag: equal for equal bytes, on every replica and whatever came before.
func (s *Snapshot) ETag() string {
	h := sha256.New()
	for _, e := range s.Child {
		_, _ = h.Write(e.digest[:]) // Never fails.
	}
	return `"` + hex.EncodeToString(h.Sum(nil)[:16]) + `"`
}

// Write writes the answer of GET /node_group: the list of top-level elements and a newline.
func (s *Snapshot) Write(w io.Writer) error { return WriteElements(w, s.Child) }

// Groups returns the tree as clients decode it.
func (s *Snapshot) Groups() []v1alpha1.Group { return groups(s.Child) }

func groups(list []*Element) []v1alpha1.Group {
	out := make([]v1alpha1.Group, len(list))
	for i, e := range list {
		out[i] = v1alpha1.Group{Name: e.Name, Kind: e.Kind, Status: e.Status, Child: groups(e.Child)}
	}
	return out
}

// All returns the elements, parents first, with the elements that hold them, top first. The list of holders is good
// until the next step only.
func (s *Snapshot) All() iter.Seq2[[]*Element, *Element] { return All(s.Child) }

// All returns elements and all below them as [Snapshot.All] does.
func All(list []*Element) iter.Seq2[[]*Element, *Element] {
	return func(yield func([]*Element, *Element) bool) { descend(list, make([]*Element, 0, MaxLevels), yield) }
}

func descend(list, holders []*Element, yield func([]*Element, *Element) bool) bool {
	for _, e := range list {
		if !yield(holders, e) || !descend(e.Child, append(holders, e), yield) {
			return false
		}
	}
	return true
}

// Select returns the elements of that kind and that name, in the tree's order and with all that is below them, and last
// NVLink domains that cross the tree's groups; "" means any. An element below a selected one is not selected again.
func (s *Snapshot) Select(kind, name string) []*Element {
	var out []*Element
	matches := func(e *Element) bool { return (kind == "" || e.Kind == kind) && (name == "" || e.Name == name) }
	for holders, e := range s.All() {
		if matches(e) && !slices.ContainsFunc(holders, matches) {
			out = append(out, e)
		}
	}
	for _, e := range s.Crossing {
		if matches(e) && (kind != "" || name != "") {
			out = append(out, e)
		}
	}
	return out
}

// WriteElements writes selected elements as Write writes all.
func WriteElements(to io.Writer, list []*Element) error {
	w := bufio.NewWriterSize(to, room)
	writeList(w, list)
	_ = w.WriteByte('\n') // The writer keeps its first error.
	return w.Flush()
}

func writeList(w *bufio.Writer, list []*Element) {
	_ = w.WriteByte('[')
	for i, e := range list {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		if _, _ = w.Write(e.body); len(e.Child) > 0 {
			writeList(w, e.Child)
			_, _ = fmt.Fprintf(w, `,"status":"%s"}`, e.Status)
		}
	}
	_ = w.WriteByte(']')
}

// room is the size of a write, in bytes: each write wakes the reader up.
const room = 64 << 10

// Findings returns all findings, by node.
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
	// Status is Ready, NotReady or Degraded. A node is NotReady if its Node is, else Degraded if it has a reason to be.
	// A group is Ready or NotReady if all its children are, else Degraded.
	Status string
	// Key identifies the group: the ID of its anchor switch, an NVLink domain, the name that its path gave. Empty for
	// nodes.
	Key string
	// NVLink is set if the group is an NVLink domain.
	NVLink bool
	// Child are sorted by name.
	Child []*Element
	// Nodes counts the nodes at and below the element.
	Nodes Count
	// Reasons explain why a node is not Ready, or what the tree cannot know of it, the gravest first.
	Reasons []Reason
	// Findings are the faults of a node, in their order.
	Findings []Finding
	// Rails are the leaves that a leaf group expects, by rail and plane.
	Rails []Rail

	// body is the JSON, of a group up to its children, digest a hash of all.
	body   []byte
	digest [sha256.Size]byte
}

// Count is the number of nodes in each status.
type Count struct {
	Ready    int `json:"ready"`
	Degraded int `json:"degraded"`
	NotReady int `json:"notReady"`
}

func (c *Count) add(o Count) {
	c.Ready += o.Ready
	c.Degraded += o.Degraded
	c.NotReady += o.NotReady
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
	// ReasonSource: a source of the report is silent, and its last good answer stands. The node is as Ready as before:
	// cables do not move because a server is silent.
	ReasonSource = "source-stale"
)

// degrades reports whether a node with that reason is not as it should be. The others only explain what the tree shows.
func (r Reason) degrades() bool { return r.Kind != ReasonSource && r.Kind != string(Unseen) }

// Reason explains why a node is not Ready, or what the tree cannot know of it.
type Reason struct {
	// Kind is a Reason constant or a Fault.
	Kind string `json:"kind"`
	// Count is the number of faults of that kind, 0 for other reasons.
	Count int `json:"count,omitempty"`
	// Since is the start of the first fault, in UTC; zero if the reports do not contain it.
	Since time.Time `json:"since,omitzero"`
}

// compareElements orders children: by name; a group and a node of one name are two.
func compareElements(a, b *Element) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Key, b.Key))
}

// summarize makes the status of a group: Ready or NotReady if all children are, else Degraded. It counts the nodes.
func (e *Element) summarize() {
	e.Status, e.Nodes = e.Child[0].Status, Count{}
	for _, c := range e.Child {
		if e.Nodes.add(c.Nodes); c.Status != e.Status {
			e.Status = v1alpha1.StatusDegraded
		}
	}
	e.encode()
}

// encode makes the JSON, as encoding/json would, of a group up to its children, and the digest of all.
func (e *Element) encode() {
	name, _ := json.Marshal(e.Name) // Strings always can be.
	b := fmt.Appendf(make([]byte, 0, 128), `{"name":%s,"kind":"%s"`, name, e.Kind)
	if len(e.Child) == 0 {
		b = fmt.Appendf(b, `,"status":"%s"}`, e.Status)
	} else {
		b = append(b, `,"child":`...)
	}
	e.body = slices.Clone(b)
	for _, c := range e.Child {
		b = append(b, c.digest[:]...)
	}
	e.digest = sha256.Sum256(append(b, e.Status...))
}
