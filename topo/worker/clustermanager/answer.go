package clustermanager

import (
	"bytes"
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

// answer is a server's.
type answer struct {
	Version string `json:"version"`
	Nodes   found  `json:"nodes"`
}

// found is the node of its name in a list that may be about every node of a cluster.
type found struct {
	node
	isList, seen bool
}

// UnmarshalJSON keeps this node alone.
func (f *found) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errShape
	}
	f.isList = true
	for d.More() {
		var n node
		if err := d.Decode(&n); err != nil {
			return err
		}
		if n.Name != f.Name {
			continue
		}
		if f.seen {
			return fmt.Errorf("duplicate node %s", n.Name)
		}
		f.seen, f.node = true, n
	}
	return nil
}

// decode finds a node in an answer. A missing node has no groups.
func decode(r io.Reader, name string) (worker.Place, error) {
	limited := &io.LimitedReader{R: r, N: MaxAnswer + 1}
	d := json.NewDecoder(limited)
	a := answer{Nodes: found{node: node{Name: name}}}
	err := d.Decode(&a)
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
	case isShape && shape.Field == "", err == nil && !a.Nodes.isList:
		return worker.Place{}, errShape
	case isShape:
		return worker.Place{}, fmt.Errorf("%s is a %s, not a %s", shape.Field, wellknown.Clip(shape.Value), shape.Type)
	case err != nil:
		return worker.Place{}, err
	case a.Version != Version:
		return worker.Place{}, fmt.Errorf("version %.20q is not %s", a.Version, Version)
	}
	return a.Nodes.place()
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
