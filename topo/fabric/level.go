package fabric

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Evidence decides which group of a level a node is in.
type Evidence string

// The sorts of evidence.
const (
	// ByPath: the report's path, which a static file or a cluster manager gave.
	ByPath Evidence = "path"
	// BySpine: leaf groups with leaves that share spines.
	BySpine Evidence = "spine"
	// ByLeaf: nodes with ports that share leaves.
	ByLeaf Evidence = "leaf"
	// ByNVLink: nodes of one NVLink domain.
	ByNVLink Evidence = "nvlink"
	// ByBlock: Level.Nodes nodes that go together, by the first known evidence
	// of: the path, the NVLink domain, neighboring ports of the leaves.
	ByBlock Evidence = "block"
)

// Level is one level of the tree.
type Level struct {
	// Kind is the level's name and the first part of its groups' names.
	Kind string   `json:"kind"`
	By   Evidence `json:"by"`
	// Nodes is the number of nodes in a group, for ByBlock.
	Nodes int `json:"nodes,omitempty"`
	// Otherwise makes the level hold only for nodes that no level groups by
	// path.
	Otherwise bool `json:"-"`
}

// Mode is a preset of levels.
type Mode string

// The modes. ModeCustom has no preset: its levels are configured.
const (
	ModeAuto      Mode = "auto"
	ModeDragonfly Mode = "dragonfly"
	ModeSwitchbox Mode = "switchbox"
	ModeLeaf      Mode = "leaf"
	ModeNVLink    Mode = "nvlink"
	ModeCustom    Mode = "custom"
)

// DefaultNodeNumber is the default number of nodes in a dragonfly.
const DefaultNodeNumber = 2

// Preset returns the levels of a mode, top first. nodeNumber is for ModeDragonfly;
// 0 means DefaultNodeNumber.
//
// ModeAuto shows what the reports show: a level without groups does not
// appear. Nodes with a path are grouped by it, others by spine and leaf, both
// by NVLink domain.
func Preset(mode Mode, nodeNumber int) ([]Level, error) {
	switch mode {
	case ModeAuto:
		return []Level{
			{Kind: "switchbox", By: ByPath},
			{Kind: "dragonfly", By: ByPath},
			{Kind: "spine", By: BySpine, Otherwise: true},
			{Kind: "leaf", By: ByLeaf, Otherwise: true},
			{Kind: "nvlink", By: ByNVLink},
		}, nil
	case ModeDragonfly:
		if nodeNumber == 0 {
			nodeNumber = DefaultNodeNumber
		}
		levels := []Level{{Kind: "dragonfly", By: ByBlock, Nodes: nodeNumber}}
		return levels, CheckLevels(levels)
	case ModeSwitchbox:
		return []Level{{Kind: "switchbox", By: ByPath}, {Kind: "dragonfly", By: ByPath}}, nil
	case ModeLeaf:
		return []Level{{Kind: "leaf", By: ByLeaf}}, nil
	case ModeNVLink:
		return []Level{{Kind: "nvlink", By: ByNVLink}}, nil
	case ModeCustom:
		return nil, errors.New("mode custom has no preset: its levels are configured")
	}
	return nil, fmt.Errorf("unknown mode %.40q: use auto, dragonfly, switchbox, leaf, nvlink or custom", string(mode))
}

// Bounds on levels.
const (
	// MaxLevels is the largest number of levels in a tree.
	MaxLevels = 8
	// maxKind is the length of a kind, in bytes: a name must have room for
	// more.
	maxKind = 20
	// maxBlock is the largest Level.Nodes.
	maxBlock = 4096
)

// CheckLevels returns every fault of configured levels.
func CheckLevels(levels []Level) error {
	if len(levels) == 0 || len(levels) > MaxLevels {
		return fmt.Errorf("levels: %d are configured, 1 to %d are possible", len(levels), MaxLevels)
	}
	var faults []error
	kinds := map[string]bool{v1alpha1.KindNode: true}
	for i, l := range levels {
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("levels[%d]: "+format, append([]any{i}, args...)...))
		}
		switch {
		case len(l.Kind) > maxKind || strings.Trim(l.Kind, "abcdefghijklmnopqrstuvwxyz0123456789") != "" || l.Kind == "":
			fault("kind %.40q is not 1 to %d lower-case letters and digits", l.Kind, maxKind)
		case kinds[l.Kind]:
			fault("kind %s is taken", l.Kind)
		}
		kinds[l.Kind] = true
		switch l.By {
		case ByPath, BySpine, ByLeaf, ByNVLink:
			if l.Nodes != 0 {
				fault("nodes is for levels by block")
			}
		case ByBlock:
			if l.Nodes < 1 || l.Nodes > maxBlock {
				fault("nodes is %d, not 1 to %d", l.Nodes, maxBlock)
			}
		default:
			fault("unknown evidence %.40q: use path, spine, leaf, nvlink or block", string(l.By))
		}
	}
	return errors.Join(faults...)
}

// pathNames aligns a report's path with the levels: by the kinds that its
// elements name, else from the bottom. The answer has a name for each level or
// "", and is nil without any. bad is set if the path contradicts the levels' order, as a
// cycle does.
func pathNames(levels []Level, path []string) (out []string, bad bool) {
	if len(path) == 0 {
		return nil, false
	}
	out = make([]string, len(levels))
	last, named := -1, false
	for _, element := range path {
		for i, l := range levels {
			if !l.byPath() || !strings.HasPrefix(element, l.Kind+"-") {
				continue
			}
			if i <= last {
				return nil, true
			}
			out[i], last, named = wellknown.Value(element), i, true
			break
		}
	}
	for i := len(levels) - 1; i >= 0 && len(path) > 0 && !named; i-- {
		if levels[i].byPath() {
			out[i] = wellknown.Value(levels[i].Kind + "-" + path[len(path)-1])
			path = path[:len(path)-1]
		}
	}
	if !slices.ContainsFunc(out, func(name string) bool { return name != "" }) {
		return nil, false
	}
	return out, false
}

func (l Level) byPath() bool { return l.By == ByPath || l.By == ByBlock }
