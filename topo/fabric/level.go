package fabric

import (
	"cmp"
	"strings"

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
	// ByBlock: Level.Nodes nodes that go together, by the first known evidence of: the path, the NVLink domain,
	// neighboring ports of the leaves.
	ByBlock Evidence = "block"
)

// Level is one level of the tree.
type Level struct {
	// Kind is the level's name and the first part of its groups' names.
	Kind string   `json:"kind"`
	By   Evidence `json:"by"`
	// Nodes is the number of nodes in a group, for ByBlock.
	Nodes int `json:"nodes,omitempty"`
	// Otherwise makes the level hold only for nodes that no level groups by path.
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

// Preset returns the levels of a mode, top first, nil if it has none. nodeNumber is for ModeDragonfly; 0 means 2.
//
// ModeAuto shows what the reports show: a level without groups does not appear. Nodes with a path are grouped by it,
// others by spine and leaf, both by NVLink domain.
func Preset(mode Mode, nodeNumber int) []Level {
	switch mode {
	case ModeAuto:
		return []Level{
			{Kind: "switchbox", By: ByPath},
			{Kind: "dragonfly", By: ByPath},
			{Kind: "spine", By: BySpine, Otherwise: true},
			{Kind: "leaf", By: ByLeaf, Otherwise: true},
			{Kind: "nvlink", By: ByNVLink},
		}
	case ModeDragonfly:
		return []Level{{Kind: "dragonfly", By: ByBlock, Nodes: cmp.Or(nodeNumber, 2)}}
	case ModeSwitchbox:
		return []Level{{Kind: "switchbox", By: ByPath}, {Kind: "dragonfly", By: ByPath}}
	case ModeLeaf:
		return []Level{{Kind: "leaf", By: ByLeaf}}
	case ModeNVLink:
		return []Level{{Kind: "nvlink", By: ByNVLink}}
	case ModeCustom:
	}
	return nil
}

// MaxLevels is the largest number of levels in a tree.
const MaxLevels = 8

// names are the names that a path gives to a node's groups, by level, "" for none.
type names [MaxLevels]string

// pathNames aligns a report's path with the levels: by the kinds that its elements name, else from the bottom. bad is
// set if the path contradicts the levels' order, as a cycle does.
func pathNames(levels []Level, path []string) (out names, bad bool) {
	last, named := -1, false
	for _, element := range path {
		for i, l := range levels {
			if !l.byPath() || !strings.HasPrefix(element, l.Kind+"-") {
				continue
			}
			if i <= last {
				return names{}, true
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
	return out, false
}

func (l Level) byPath() bool { return l.By == ByPath || l.By == ByBlock }
