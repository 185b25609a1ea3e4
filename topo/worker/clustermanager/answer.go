package clustermanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/worker"
)

// MaxAnswer is the longest answer that is read, in bytes after decompression.
const MaxAnswer = 8 << 20

// Version is the value of the answer's key version.
const Version = "v1"

// node is the answer of a server about one node.
type node struct {
	Name  string   `json:"name"`
	Path  []string `json:"path"`
	Rails []struct {
		Rail   int32  `json:"rail"`
		Plane  int32  `json:"plane"`
		Switch string `json:"switch"`
		Name   string `json:"name"`
		Port   string `json:"port"`
	} `json:"rails"`
}

var (
	errLong    = fmt.Errorf("the answer is longer than %d bytes", MaxAnswer)
	errShape   = errors.New(`the answer is not an object {"version": "v1", "nodes": […]}`)
	errTrailer = errors.New("something follows the answer's JSON")
)

// decode finds a node in an answer. It reads the answer in pieces, since that may be about every
// node of a cluster, and keeps this one only. A missing node has no groups.
func decode(r io.Reader, name string) (worker.Place, error) {
	limited := &io.LimitedReader{R: r, N: MaxAnswer + 1}
	d := json.NewDecoder(limited)
	a := answer{found: node{Name: name}}
	err := a.object(d)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errTrailer
		}
	}
	syntax, isSyntax := errors.AsType[*json.SyntaxError](err)
	shape, isShape := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case limited.N <= 0:
		return worker.Place{}, errLong
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return worker.Place{}, errors.New("the answer's JSON is cut short")
	case isSyntax:
		return worker.Place{}, fmt.Errorf("invalid JSON in the answer, at byte %d: %w", syntax.Offset, err)
	case isShape:
		return worker.Place{}, fmt.Errorf("%s is a %s, not a %s", shape.Field, wellknown.Clip(shape.Value), shape.Type)
	case err != nil:
		return worker.Place{}, err
	case a.version != Version:
		return worker.Place{}, fmt.Errorf("version %.20q is not %s", a.version, Version)
	case !a.hasNodes:
		return worker.Place{}, errShape
	}
	return a.found.place()
}

type answer struct {
	version        string
	found          node
	hasNodes, seen bool
}

// open reads the token that begins a list or an object.
func open(d *json.Decoder, begin json.Delim) error {
	t, err := d.Token()
	if err == nil && t != begin {
		err = errShape
	}
	return err
}

// object reads the answer's outermost object. Keys that it does not know are
// for others.
func (a *answer) object(d *json.Decoder) error {
	if err := open(d, '{'); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch key {
		case "version":
			err = d.Decode(&a.version)
		case "nodes":
			err = a.nodes(d)
		default:
			err = d.Decode(&json.RawMessage{})
		}
		if err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func (a *answer) nodes(d *json.Decoder) error {
	if err := open(d, '['); err != nil {
		return err
	}
	if a.hasNodes {
		return errShape
	}
	a.hasNodes = true
	for d.More() {
		var n node
		if err := d.Decode(&n); err != nil {
			return err
		}
		if n.Name != a.found.Name {
			continue
		}
		if a.seen {
			return fmt.Errorf("duplicate node %s", n.Name)
		}
		a.seen, a.found = true, n
	}
	_, err := d.Token()
	return err
}

// place checks what goes into a NodeTopology.
func (n *node) place() (worker.Place, error) {
	p := worker.Place{Path: n.Path}
	if len(n.Path) > worker.MaxPath {
		return p, fmt.Errorf("path has %d groups, more than %d", len(n.Path), worker.MaxPath)
	}
	for i, name := range n.Path {
		if name == "" {
			return p, fmt.Errorf("path[%d] is empty", i)
		}
		if err := wellknown.CheckValue(name); err != nil {
			return p, fmt.Errorf("path[%d]: %w", i, err)
		}
		if first := slices.Index(n.Path, name); first < i {
			return p, fmt.Errorf("path[%d]: %s stands in itself: it is entry %d too", i, name, first)
		}
	}
	if len(n.Rails) > worker.MaxRails {
		return p, fmt.Errorf("%d rails, more than %d", len(n.Rails), worker.MaxRails)
	}
	seen := map[[2]int32]bool{}
	for i := range n.Rails {
		r := &n.Rails[i]
		id, at := worker.Text(r.Switch, worker.MaxName), [2]int32{r.Rail, r.Plane}
		switch {
		case r.Rail < 0 || r.Rail >= worker.MaxRails || r.Plane < 0 || r.Plane >= worker.MaxPlanes:
			return p, fmt.Errorf("rails[%d]: rail %d, plane %d is out of bounds", i, r.Rail, r.Plane)
		case id == "":
			return p, fmt.Errorf("rails[%d] names no switch", i)
		case seen[at]:
			return p, fmt.Errorf("rails[%d]: duplicate rail %d, plane %d", i, r.Rail, r.Plane)
		}
		seen[at] = true
		p.Rails = append(p.Rails, v1alpha1.Rail{
			Rail: r.Rail, Plane: r.Plane, SwitchPort: worker.Text(r.Port, worker.MaxName),
			Switch: &v1alpha1.Switch{ID: id, Name: worker.Text(r.Name, worker.MaxSwitchName)},
		})
	}
	return p, nil
}
