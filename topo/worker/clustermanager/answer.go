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

// The bounds of a NodeTopology.
const (
	maxPath  = 8
	maxRail  = 127
	maxPlane = 15
	maxRails = 128
)

// Node is what a server has about one node.
type Node struct {
	Name string `json:"name"`
	// Path are its groups, top first.
	Path  []string `json:"path"`
	Rails []Rail   `json:"rails"`
}

// Rail is the switch that a rail of the node leads to.
type Rail struct {
	Rail   int32  `json:"rail"`
	Plane  int32  `json:"plane"`
	Switch string `json:"switch"`
	Name   string `json:"name"`
	Port   string `json:"port"`
}

var (
	errLong    = fmt.Errorf("the answer is longer than %d bytes", MaxAnswer)
	errShape   = errors.New(`the answer is no object {"version": "v1", "nodes": […]}`)
	errTrailer = errors.New("something follows the answer's JSON")
)

// Decode finds a node in an answer. It reads the answer in pieces, since that
// may be about every node of a cluster, and keeps this one only. A node that
// is not there is in no group.
func Decode(r io.Reader, node string) (Node, error) {
	limited := &limit{r: r, left: MaxAnswer}
	d := json.NewDecoder(limited)
	a := answer{node: node, found: Node{Name: node}}
	err := a.object(d)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errTrailer
		}
	}
	switch {
	case limited.left < 0:
		return Node{}, errLong
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return Node{}, errors.New("the answer's JSON is cut short")
	case err != nil:
		return Node{}, err
	case a.version != Version:
		return Node{}, fmt.Errorf("version %.20q is not %s", a.version, Version)
	case !a.hasNodes:
		return Node{}, errShape
	}
	return a.found, a.found.check()
}

type answer struct {
	node, version string
	found         Node
	hasNodes      bool
	seen          bool
}

// object reads the answer's outermost object. Keys that it does not know are
// for others.
func (a *answer) object(d *json.Decoder) error {
	if t, err := d.Token(); err != nil {
		return wrap(err)
	} else if t != json.Delim('{') {
		return errShape
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return wrap(err)
		}
		switch key {
		case "version":
			err = d.Decode(&a.version)
		case "nodes":
			err = a.nodes(d)
		default:
			err = skip(d)
		}
		if err != nil {
			return wrap(err)
		}
	}
	_, err := d.Token()
	return wrap(err)
}

func (a *answer) nodes(d *json.Decoder) error {
	if t, err := d.Token(); err != nil {
		return err
	} else if t != json.Delim('[') || a.hasNodes {
		return errShape
	}
	a.hasNodes = true
	for d.More() {
		var n Node
		if err := d.Decode(&n); err != nil {
			return err
		}
		if n.Name != a.node {
			continue
		}
		if a.seen {
			return fmt.Errorf("node %s is there twice", a.node)
		}
		a.seen, a.found = true, n
	}
	_, err := d.Token()
	return err
}

// skip reads one value token by token, so that it is never whole in memory.
func skip(d *json.Decoder) error {
	for depth := 0; ; {
		t, err := d.Token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

func wrap(err error) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("the answer is no JSON, at byte %d: %w", syntax.Offset, err)
	}
	if typ, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s is a %s, not a %s", typ.Field, typ.Value, typ.Type)
	}
	return err
}

// check bounds what goes into a NodeTopology.
func (n *Node) check() error {
	if len(n.Path) > maxPath {
		return fmt.Errorf("path has %d groups, more than %d", len(n.Path), maxPath)
	}
	for i, name := range n.Path {
		if name == "" {
			return fmt.Errorf("path[%d] is empty", i)
		}
		if err := wellknown.CheckValue(name); err != nil {
			return fmt.Errorf("path[%d]: %w", i, err)
		}
		if first := slices.Index(n.Path, name); first < i {
			return fmt.Errorf("path[%d]: %s stands in itself: it is entry %d too", i, name, first)
		}
	}
	if len(n.Rails) > maxRails {
		return fmt.Errorf("%d rails, more than %d", len(n.Rails), maxRails)
	}
	seen := map[[2]int32]bool{}
	for i := range n.Rails {
		r := &n.Rails[i]
		switch at := [2]int32{r.Rail, r.Plane}; {
		case r.Rail < 0 || r.Rail > maxRail || r.Plane < 0 || r.Plane > maxPlane:
			return fmt.Errorf("rails[%d]: rail %d, plane %d is out of bounds", i, r.Rail, r.Plane)
		case worker.Text(r.Switch, worker.MaxName) == "":
			return fmt.Errorf("rails[%d] names no switch", i)
		case seen[at]:
			return fmt.Errorf("rails[%d]: rail %d, plane %d is there twice", i, r.Rail, r.Plane)
		default:
			seen[at] = true
		}
	}
	return nil
}

// rail is the rail as a NodeTopology has it.
func (r *Rail) rail(confidence int32) v1alpha1.Rail {
	return v1alpha1.Rail{
		Rail: r.Rail, Plane: r.Plane, SwitchPort: worker.Text(r.Port, worker.MaxName), Confidence: confidence,
		Switch: &v1alpha1.Switch{
			ID: worker.Text(r.Switch, worker.MaxName), Name: worker.Text(r.Name, worker.MaxSwitchName),
		},
	}
}

// limit ends a stream that is too long; left is negative then.
type limit struct {
	r    io.Reader
	left int64
}

func (l *limit) Read(b []byte) (int, error) {
	if l.left < 0 {
		return 0, errLong
	}
	// One byte more than allowed distinguishes "just as long" from "longer".
	if int64(len(b)) > l.left+1 {
		b = b[:l.left+1]
	}
	n, err := l.r.Read(b)
	if l.left -= int64(n); l.left < 0 {
		return 0, errLong
	}
	return n, err
}
