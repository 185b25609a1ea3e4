package snapshot

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// Topology is the answer of GET /v1/topology: all but the ports of each node,
// which /v1/nodes/{name} has. Nothing in it depends on the replica or on when
// it is asked, but for StaleSince.
type Topology struct {
	// StaleSince is there if the replica has not heard from the API server for
	// longer than that is ever silent: what follows is how the cluster was
	// then.
	StaleSince *time.Time `json:"staleSince,omitempty"`
	// Levels are the kinds of groups that can be, top first.
	Levels []Level `json:"levels"`
	// Tree are the top-level elements.
	Tree  []Element `json:"tree"`
	Nodes Count     `json:"nodes"`
	GPUs  GPUs      `json:"gpus"`
	// Findings are all cables that are not as they should be, by node.
	Findings []fabric.Finding `json:"findings"`
	// Ignored are reports that are not believed, by name.
	Ignored []Ignored `json:"ignored"`
}

// Level is a kind of groups.
type Level struct {
	Kind string          `json:"kind"`
	By   fabric.Evidence `json:"by"`
	// Nodes is how many nodes a group has at most, where that is fixed.
	Nodes int `json:"nodes,omitempty"`
}

// Count is how many nodes are in which status.
type Count struct {
	Ready    int `json:"ready"`
	Degraded int `json:"degraded"`
	NotReady int `json:"notReady"`
}

// Element is a group or a node.
type Element struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Status string `json:"status"`
	// Key is what a group is known by: the ID of its first switch, an NVLink
	// domain, a configured name.
	Key      string   `json:"key,omitempty"`
	Product  string   `json:"product,omitempty"`
	Cordoned bool     `json:"cordoned,omitempty"`
	Reasons  []Reason `json:"reasons,omitempty"`
	GPUs     GPUs     `json:"gpus"`
	// Nodes counts the nodes of a group.
	Nodes *Count `json:"nodes,omitempty"`
	// Rails are the leaves that a group's cables should go to.
	Rails []Rail    `json:"rails,omitempty"`
	Child []Element `json:"child,omitempty"`
}

// Rail is the leaf behind one rail and plane.
type Rail struct {
	Rail  int32         `json:"rail"`
	Plane int32         `json:"plane,omitempty"`
	Leaf  fabric.Switch `json:"leaf"`
}

// Ignored is a report that is not believed.
type Ignored struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Document is an answer, compressed.
type Document struct {
	// Gzip is shared: not to be written to.
	Gzip []byte
	// Size is the length before compression, in bytes.
	Size int64
	// Tag is the hash of the content, in hex.
	Tag string
}

// encode makes the document, one top-level element at a time so that no more
// than that is in memory twice.
func (v *Snapshot) encode() (*Document, error) { return pack(v.write) }

// pack compresses what write writes.
func pack(write func(io.Writer) error) (*Document, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress an answer: %w", err)
	}
	hash := sha256.New()
	size := &length{w: io.MultiWriter(z, hash)}
	if err := write(size); err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress an answer: %w", err)
	}
	return &Document{Gzip: bytes.Clone(b.Bytes()), Size: size.n, Tag: hex.EncodeToString(hash.Sum(nil)[:16])}, nil
}

type length struct {
	w io.Writer
	n int64
}

func (l *length) Write(b []byte) (int, error) {
	n, err := l.w.Write(b)
	l.n += int64(n)
	return n, err
}

// write writes a Topology as encoding/json would.
func (v *Snapshot) write(w io.Writer) error {
	levels := []Level{}
	for _, l := range v.Levels {
		levels = append(levels, Level{l.Kind, l.By, l.Nodes})
	}
	head := `{"levels":`
	if !v.StaleSince.IsZero() {
		if err := writeJSON(w, `{"staleSince":`, v.StaleSince); err != nil {
			return err
		}
		head = `,"levels":`
	}
	if err := writeJSON(w, head, levels); err != nil {
		return err
	}
	var all GPUs
	head = `,"tree":[`
	for _, e := range v.Tree.Child {
		element := v.element(e)
		all.add(element.GPUs)
		if err := writeJSON(w, head, element); err != nil {
			return err
		}
		head = ","
	}
	if len(v.Tree.Child) == 0 {
		if _, err := io.WriteString(w, head); err != nil {
			return err
		}
	}
	findings := v.Tree.Findings()
	if findings == nil {
		findings = []fabric.Finding{}
	}
	for _, part := range []struct {
		head  string
		value any
	}{
		{`],"nodes":`, Count(v.Tree.Nodes)}, {`,"gpus":`, all}, {`,"findings":`, findings}, {`,"ignored":`, v.ignored()},
	} {
		if err := writeJSON(w, part.head, part.value); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "}\n")
	return err
}

func writeJSON(w io.Writer, head string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, head); err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

func (v *Snapshot) element(e *fabric.Element) Element {
	out := Element{Name: e.Name, Kind: e.Kind, Status: e.Status, Key: e.Key, Reasons: reasons(e.Reasons)}
	if e.Kind == v1alpha1.KindNode {
		d, _ := v.Nodes.Of(e.Name)
		out.GPUs = v.gpus(d)
		if d.Node != nil {
			out.Cordoned = d.Node.Cordoned
		}
		if r := d.Believed(); r != nil {
			out.Product = r.Product()
		}
		return out
	}
	out.Nodes = new(Count(e.Nodes))
	for _, r := range e.Rails {
		out.Rails = append(out.Rails, Rail{r.Rail, r.Plane, r.Leaf})
	}
	out.Child = make([]Element, len(e.Child))
	for i, c := range e.Child {
		out.Child[i] = v.element(c)
		out.GPUs.add(out.Child[i].GPUs)
	}
	return out
}

// maxIgnored bounds a list of what is not believed.
const maxIgnored = 1000

func (v *Snapshot) ignored() []Ignored {
	out := []Ignored{}
	for name, d := range v.Nodes.All() {
		if why := d.Ignored(); why != "" {
			out = append(out, Ignored{name, why})
		}
	}
	slices.SortFunc(out, func(a, b Ignored) int { return strings.Compare(a.Name, b.Name) })
	return out[:min(len(out), maxIgnored)]
}
