package kfd

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

const nodesDir = "class/kfd/kfd/topology/nodes"

// xgmi is HSA_IOLINK_TYPE_XGMI, the type of a link between GPUs.
const xgmi = 11

// maxNodes bounds the topology: 8 GPUs of 8 partitions and their processors.
const maxNodes = 256

// node is one of the topology's: a GPU, or a partition of one.
type node struct {
	id         int
	properties properties
	address    string
	partition  int
}

// place takes location_id apart: the bits of a PCI address, and of one partition of
// several its number, in the uppermost four or, in older kernels, in those of the
// function, which no GPU has: function 1 is its sound.
func (n *node) place(fs sysfs.FS) {
	domain, location := n.properties["domain"], n.properties["location_id"]
	at := func(function uint64) string {
		return fmt.Sprintf("%04x:%02x:%02x.%d", domain, location>>8&0xff, location>>3&0x1f, function)
	}
	function := location & 7
	n.partition = int(location >> 28 & 0xf)
	// A virtual function may have any number.
	if n.address = at(function); function > 0 && !isGPU(fs, n.address) {
		n.address, n.partition = at(0), int(function)
	}
}

func isGPU(fs sysfs.FS, address string) bool {
	return fs.Exists("bus/pci/devices/" + address + "/drm")
}

func (n *node) render() int { return int(n.properties["drm_render_minor"]) } //nolint:gosec // Bounded by readNodes.

// computeUnits is 0 where the driver does not report how many SIMDs one has.
func (n *node) computeUnits() int {
	if perUnit := n.properties["simd_per_cu"]; perUnit > 0 {
		return int(n.properties["simd_count"] / perUnit) //nolint:gosec // Bounded by readNodes.
	}
	return 0
}

// device is a GPU: its nodes by partition. The first represents all.
type device struct {
	address string
	nodes   []node
}

// topology are the GPUs in the order of their nodes, and which has a node.
type topology struct {
	devices []device
	owner   map[int]string
	// fault is why some node could not be read. It may be a partition of any GPU, and
	// the end of any link.
	fault error
}

// readTopology reads every node. One that cannot be read does not hide the
// others, and is returned as an error beside them.
func readTopology(fs sysfs.FS) (topology, error) {
	t := topology{owner: map[int]string{}}
	names, err := fs.List(nodesDir)
	if err != nil {
		return t, err
	}
	slices.SortFunc(names, machine.CompareNames)
	var errs []error
	if len(names) > maxNodes {
		errs = append(errs, fmt.Errorf("%s has %d nodes, more than %d", fs.Path(nodesDir), len(names), maxNodes))
		names = names[:maxNodes]
	}
	byAddress := map[string]*device{}
	for _, name := range names {
		id, err := strconv.Atoi(name)
		if err != nil || id < 0 {
			continue
		}
		n, err := readNode(fs, id)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("topology node %d: %w", id, err))
			continue
		case n.properties["simd_count"] == 0:
			continue // A processor.
		}
		t.owner[id] = n.address
		if byAddress[n.address] == nil {
			byAddress[n.address] = &device{address: n.address}
		}
		byAddress[n.address].nodes = append(byAddress[n.address].nodes, n)
	}
	t.fault = errors.Join(errs...)
	for _, d := range slices.SortedFunc(maps.Values(byAddress), func(a, b *device) int {
		return cmp.Compare(a.nodes[0].id, b.nodes[0].id)
	}) {
		slices.SortStableFunc(d.nodes, func(a, b node) int { return cmp.Compare(a.partition, b.partition) })
		t.devices = append(t.devices, *d)
	}
	return t, t.fault
}

func readNode(fs sysfs.FS, id int) (node, error) {
	path := nodesDir + "/" + strconv.Itoa(id) + "/properties"
	p, err := readProperties(fs, path, "simd_count")
	if err == nil && p["simd_count"] > 0 {
		p, err = readProperties(fs, path, "vendor_id", "device_id", "location_id", "domain", "drm_render_minor")
	}
	for _, name := range []string{"simd_count", "drm_render_minor", "domain"} {
		if err == nil && p[name] > 1<<20 {
			err = fmt.Errorf("read %s: property %s is %d", fs.Path(path), name, p[name])
		}
	}
	if err != nil {
		return node{}, err
	}
	n := node{id: id, properties: p}
	n.place(fs)
	return n, nil
}

// The weights of direct links (kfd_crat.c): 15 for each hop, and between partitions
// of two GPUs 41, for which the driver reports neither hops nor bandwidth. What is
// more goes through a third GPU.
const (
	oneHop     = 15
	partitions = 41
)

// links returns a GPU's direct XGMI links to others; partitions of one GPU have the
// same ones. min_bandwidth is for one link, max_bandwidth for all. An error comes beside those that could be read.
func (t *topology) links(fs sysfs.FS, d *device) ([]machine.NVLink, error) {
	errs := []error{t.fault}
	byPeer := map[string]machine.NVLink{}
	for _, n := range d.nodes {
		all, err := readEach(fs, fmt.Sprintf("%s/%d/io_links", nodesDir, n.id),
			"type", "node_to", "weight", "min_bandwidth", "max_bandwidth")
		errs = append(errs, err)
		for _, p := range all {
			peer := t.owner[int(min(p["node_to"], maxNodes))]
			direct := p["type"] == xgmi && (p["weight"] <= oneHop || p["weight"] == partitions)
			if !direct || peer == "" || peer == d.address {
				continue
			}
			if l := linkOf(peer, p); l.Links > byPeer[peer].Links {
				byPeer[peer] = l
			}
		}
	}
	return slices.SortedFunc(maps.Values(byPeer), func(a, b machine.NVLink) int {
		return machine.ComparePCI(a.Peer, b.Peer)
	}), errors.Join(errs...)
}

// maxLinks is more than any GPU has to one other.
const maxLinks = 64

func linkOf(peer string, p properties) machine.NVLink {
	l := machine.NVLink{Peer: peer, Kind: linkKind, Links: 1}
	least, most := p["min_bandwidth"], p["max_bandwidth"]
	if most == 0 || most > 1<<30 {
		return l
	}
	l.MBps = new(int64(most))
	if least > 0 {
		l.Links = int(min(max(most/least, 1), maxLinks))
	}
	return l
}

const linkKind = "XGMI"
