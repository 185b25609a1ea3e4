package config

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Topology is how a node finds its place in the fabric, and how places become
// groups.
type Topology struct {
	// Mode selects the groups: `auto` what the reports show, `leaf` leaf switches, `dragonfly` leaf groups of
	// `nodeNumber` nodes and more, `switchbox` the groups that a cluster manager or a file names, `nvlink`
	// NVLink domains, `custom` those of `levels`. Only `cluster-config` sets it.
	Mode TopologyMode `yaml:"mode" enum:"auto,dragonfly,switchbox,leaf,nvlink,custom"`
	// NodeNumber is the number of nodes of a dragonfly.
	NodeNumber int `yaml:"nodeNumber" range:"1-4096"`
	// Levels are the levels of mode `custom`, top first: 1 to 8. They are invalid with other modes.
	Levels []TopologyLevel `yaml:"levels"`
	// Sources are the sources to use: `ib` the switch behind an InfiniBand port, `lldp` the frames of an
	// Ethernet switch, `nvlink` the GPU driver, `static` the file below, `cluster-manager` the server below.
	// The last two report nothing until you configure them. If sources contradict each other, the first in this
	// order wins.
	Sources []TopologySource `yaml:"sources" enum:"ib,lldp,nvlink,static,cluster-manager" unique:"true"`
	// StaticFile is a file that names the groups of nodes or the switches of rails;
	// docs/concepts/topology.md describes it.
	StaticFile AbsolutePath `yaml:"staticFile"`
	// PathLabels are keys of Node labels with the groups of a node as values, top first:
	// `[topology.kubernetes.io/zone, example.com/rack]`. They count for nodes without a known switch and
	// without groups from a file or a server. At most 8.
	PathLabels []LabelKey `yaml:"pathLabels" unique:"true"`
	// ClusterManager is the `https://` URL of a server that knows the groups of nodes; every node asks it every
	// five minutes. docs/concepts/topology.md describes request and answer. User, password and the
	// authority of its certificate come from a Secret.
	ClusterManager HTTPSAddress `yaml:"clusterManager"`
}

// TopologyLevel is one level of groups, of mode `custom`.
type TopologyLevel struct {
	// Kind is the kind of the level's groups and the first part of their names: `rack`. It has 1 to 20
	// lower-case letters and digits, is unique, and is not `node`.
	Kind LevelKind `yaml:"kind" required:"true"`
	// By is the evidence that nodes belong together: `path` the groups that a file or a cluster manager names,
	// `spine` spine switches that their leaves share, `leaf` leaf switches, `nvlink` NVLink domains, `block`
	// blocks of `nodes` neighbors.
	By LevelEvidence `yaml:"by" required:"true" enum:"path,spine,leaf,nvlink,block"`
	// Nodes is the number of nodes of a group, for levels by `block` only.
	Nodes int `yaml:"nodes" range:"0-4096"`
}

// LevelKind is the kind of the groups of a level.
type LevelKind string

// kindOfNodes is the kind of the elements below all levels.
const kindOfNodes = "node"

// maxLevelKind is the longest kind, in characters: a group's name is a label
// value and must have room for more.
const maxLevelKind = 20

// Check reports what is wrong with a kind.
func (k LevelKind) Check() error {
	switch {
	case k == "" || len(k) > maxLevelKind || strings.Trim(string(k), "abcdefghijklmnopqrstuvwxyz0123456789") != "":
		return fmt.Errorf("invalid kind %.40q: want 1 to %d lower-case letters and digits", string(k), maxLevelKind)
	case k == kindOfNodes:
		return fmt.Errorf("%q is the kind of nodes", string(k))
	}
	return nil
}

// LevelEvidence is the evidence that nodes are in one group.
type LevelEvidence string

// LevelByBlock are blocks of neighbors.
const LevelByBlock LevelEvidence = "block"

// maxLevels is how many levels a tree can have.
const maxLevels = 8

// TopologyMode is a set of levels.
type TopologyMode string

// The modes that mean something to this package.
const (
	TopologyAuto   TopologyMode = "auto"
	TopologyCustom TopologyMode = "custom"
)

// TopologySource is who is asked where a cable ends.
type TopologySource string

// The sources.
const (
	SourceIB             TopologySource = "ib"
	SourceLLDP           TopologySource = "lldp"
	SourceNVLink         TopologySource = "nvlink"
	SourceStatic         TopologySource = "static"
	SourceClusterManager TopologySource = "cluster-manager"
)

// Uses reports whether a source is asked.
func (t *Topology) Uses(s TopologySource) bool { return slices.Contains(t.Sources, s) }

// AbsolutePath is the name of a file from the root, or empty.
type AbsolutePath string

// Check reports what is wrong with a name.
func (p AbsolutePath) Check() error {
	if p != "" && (!path.IsAbs(string(p)) || path.Clean(string(p)) != string(p)) {
		return fmt.Errorf("invalid path %.100q: want a clean absolute path, such as /etc/heddle/topology.yaml", string(p))
	}
	return nil
}

// LabelKey is the key of a label.
type LabelKey string

// Check reports what is wrong with a key.
func (k LabelKey) Check() error { return wellknown.CheckKey(string(k)) }

// HTTPSAddress is a URL of scheme https, or empty.
type HTTPSAddress string

// Check reports what is wrong with a URL. A password belongs into a Secret.
func (a HTTPSAddress) Check() error {
	if a == "" {
		return nil
	}
	u, err := url.Parse(string(a))
	switch {
	case err != nil, u.Scheme != "https", u.Host == "", u.Fragment != "", u.Opaque != "":
		return fmt.Errorf("invalid URL %.100q: want one such as https://manager.example.com/topology", string(a))
	case u.User != nil:
		return fmt.Errorf("%.100q has a user in it; user and password come from a Secret", u.Redacted())
	}
	return nil
}

// levels checks the levels of mode custom, and rejects levels of other modes.
func (v *validator) levels(t *Topology) {
	const at = "topology.levels"
	if n := len(t.PathLabels); n > maxLevels {
		v.addf("topology.pathLabels", "%d labels, more than %d", n, maxLevels)
	}
	switch n := len(t.Levels); {
	case t.Mode != TopologyCustom && n > 0:
		v.addf(at, "are for mode custom; mode %s defines its own levels", t.Mode)
		return
	case t.Mode == TopologyCustom && n == 0:
		v.addf(at, "are missing: mode custom has no others")
	case n > maxLevels:
		v.addf(at, "%d levels, more than %d", n, maxLevels)
	}
	for i, l := range t.Levels {
		place := fmt.Sprintf("%s[%d].", at, i)
		if first := slices.IndexFunc(t.Levels, func(o TopologyLevel) bool { return o.Kind == l.Kind }); first < i {
			v.addf(place+"kind", "%s is also the kind of level %d", l.Kind, first)
		}
		switch {
		case l.By == LevelByBlock && l.Nodes == 0:
			v.addf(place+"nodes", "is missing: levels by block need it")
		case l.By != LevelByBlock && l.Nodes != 0:
			v.addf(place+"nodes", "is for levels by block, not by %s", l.By)
		}
	}
}
