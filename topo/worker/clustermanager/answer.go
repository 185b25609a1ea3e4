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

// decode finds a node in an answer, which may be about every node of a cluster. A missing node has no groups.
func decode(r io.Reader, name string) (worker.Place, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxAnswer+1))
	if err != nil {
		return worker.Place{}, err
	}
	if len(b) > MaxAnswer {
		return worker.Place{}, fmt.Errorf("the answer is longer than %d bytes", MaxAnswer)
	}
	var a struct {
		Version string            `json:"version"`
		Nodes   []json.RawMessage `json:"nodes"`
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return worker.Place{}, errors.New("invalid JSON in the answer: " + wellknown.Clip(err.Error()))
	}
	switch {
	case a.Version != Version:
		return worker.Place{}, fmt.Errorf("version %.20q is not %s", a.Version, Version)
	case a.Nodes == nil:
		return worker.Place{}, errors.New("the answer has no nodes")
	}
	for _, text := range a.Nodes {
		var n node
		err := json.Unmarshal(text, &n) // What is wrong with another node does not matter.
		if n.Name == name && err != nil {
			return worker.Place{}, errors.New("invalid JSON in the answer: " + wellknown.Clip(err.Error()))
		}
		if n.Name == name {
			return n.place()
		}
	}
	return worker.Place{}, nil
}

// place checks what goes into a NodeTopology.
func (n *node) place() (worker.Place, error) {
	p := worker.Place{Path: n.Path}
	if len(n.Path) > worker.MaxPath {
		return p, fmt.Errorf("path has %d groups, more than %d", len(n.Path), worker.MaxPath)
	}
	for i, name := range n.Path {
		if err := wellknown.CheckValue(name); err != nil || name == "" {
			return p, fmt.Errorf("path[%d]: invalid group %q", i, wellknown.Clip(name))
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
