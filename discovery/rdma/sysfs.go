package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

const class = "class/infiniband"

// listing is the content of the class.
type listing struct {
	names []string
	// absent is why there are none.
	absent string
	nodes  map[string]machine.CharDevices
	// cm reports whether there is an rdma_cm.
	cm      bool
	skipped []machine.Skipped
}

// list lists the devices and their nodes. An error means that the class cannot
// be listed at all.
func (r *Reader) list() (listing, error) {
	var all listing
	var err error
	if all.names, err = r.tree.List(class); err != nil {
		return all, fmt.Errorf("RDMA devices: %w", err)
	}
	if len(all.names) == 0 {
		all.absent = "no device in " + r.tree.Path(class)
		if !r.tree.Exists(class) {
			all.absent = r.tree.Path(class) + " is not there: no RDMA driver is loaded"
		}
	}
	r.charDevices(&all)
	return all, nil
}

// States returns what changes at RDMA devices without a kernel event: which there are, and the states of ports and of
// their network devices, as the kernel writes them. It may take as long as the adapters' firmware.
func States(tree sysfs.FS, hcas []machine.HCA) []string {
	states, _ := tree.List(class) // Read has the error.
	for i := range hcas {
		for j := range hcas[i].Ports {
			p := &hcas[i].Ports[j]
			dir := class + "/" + hcas[i].Name + "/ports/" + strconv.Itoa(p.Number) + "/"
			for _, attribute := range []string{"state", "phys_state", "rate", "lid", "sm_lid"} {
				states = append(states, tree.Text(dir+attribute))
			}
			for _, n := range p.Netdevs {
				states = append(states, tree.Text("class/net/"+n.Name+"/operstate"))
			}
		}
	}
	return states
}

// reading is the result of reading one device.
type reading struct {
	hca machine.HCA
	// isDevice is false for another entry of the class.
	isDevice bool
	skipped  []machine.Skipped
}

func (r *Reader) device(name string) reading {
	dir := class + "/" + name
	one := device{tree: r.tree, name: name, dir: dir}
	hca, ok := one.read()
	return reading{hca, ok, one.skipped}
}

// device is the reading of one RDMA device.
type device struct {
	tree    sysfs.FS
	name    string
	dir     string
	skipped []machine.Skipped
}

func (d *device) skip(part, reason string) {
	d.skipped = append(d.skipped, machine.Skipped{Name: d.name + part, Reason: reason})
}

// text returns an attribute, cut to the length that real ones have; a fault
// in reading it is noted, absence is not.
func (d *device) text(part, attribute string) string {
	text, err := d.tree.Read(d.dir + part + "/" + attribute)
	if err != nil && !sysfs.Unknown(err) {
		d.skip(part, err.Error())
	}
	return wellknown.Clip(text)
}

// read returns false for an entry that is not a device.
func (d *device) read() (machine.HCA, bool) {
	tree := d.tree
	hca := machine.HCA{Name: d.name}
	ports, err := tree.List(d.dir + "/ports")
	if err != nil || (len(ports) == 0 && !tree.Exists(d.dir+"/node_guid")) {
		d.skip("", tree.Path(d.dir)+" has neither ports nor node_guid: not an RDMA device, or one that has just left")
		return hca, false
	}
	hca.NodeGUID = d.guid("node_guid")
	hca.SysImageGUID = d.guid("sys_image_guid")
	hca.Type = d.text("", "hca_type")
	hca.Board = d.text("", "board_id")
	hca.Firmware = d.text("", "fw_ver")
	hca.NodeType = parseWords(d.text("", "node_type"))
	hca.NodeDesc = d.text("", "node_desc")
	d.place(&hca)
	nics := d.interfaces(hca.PCI)
	for _, name := range ports {
		number, err := strconv.Atoi(name)
		if err != nil || number < 0 {
			d.skip("/ports/"+name, "no port number")
			continue
		}
		hca.Ports = append(hca.Ports, d.port(number, nics))
	}
	d.bond(&hca)
	return hca, true
}

// guid returns an attribute that must be there. hfi1 and old drivers lack none;
// empty or malformed ones are unknown, with the reason.
func (d *device) guid(attribute string) string {
	text, err := d.tree.Read(d.dir + "/" + attribute)
	if err == nil {
		text, err = parseGUID(text)
	}
	if err == nil {
		return text
	}
	if !sysfs.Unknown(err) {
		d.skip("/"+attribute, d.tree.Path(d.dir+"/"+attribute)+": "+err.Error())
	}
	return ""
}

// place finds the PCI function. Soft devices live under devices/virtual; siw
// of older kernels hangs itself under the NIC's function, and names its kind
// in node_desc. A class entry that is a directory, as in copied trees, is
// read like any other; its place comes from its device link, if it has one.
func (d *device) place(hca *machine.HCA) {
	tree := d.tree
	parent := d.text("", "parent")
	if parent != "" && tree.Exists(class+"/"+parent) {
		parent = "" // An SMI device's, which is an RDMA device; rxe's is a network device.
	}
	if driver := soft(hca, parent); driver != "" {
		hca.Virtual, hca.Driver = true, driver
		return
	}
	path := tree.Link(d.dir)
	if path == "" {
		path = tree.Link(d.dir + "/device")
	}
	place := sysfs.ParsePlace(path)
	switch {
	case place.Function() != "":
		hca.PCI = strings.ToLower(place.Function())
	case place.Virtual:
		hca.Virtual = true
	default:
		d.skip("", tree.Path(d.dir)+" leads to no PCI function: its place is unknown")
	}
}

// soft recognizes drivers without hardware by what they alone write: rxe has
// an attribute parent and the description "rxe", siw is an RNIC with the
// description "Software iWARP stack" (drivers/infiniband/sw).
func soft(hca *machine.HCA, parent string) string {
	switch {
	case parent != "" || hca.NodeDesc == "rxe":
		return "rdma_rxe"
	case strings.HasPrefix(hca.NodeDesc, "Software iWARP"):
		return "siw"
	}
	return ""
}

func (d *device) interfaces(pci string) []sysfs.Interface {
	if pci == "" {
		return nil
	}
	nics, err := d.tree.Interfaces(pci)
	if err != nil {
		d.skip("", err.Error())
	}
	return nics
}

func (d *device) port(number int, nics []sysfs.Interface) machine.Port {
	part := "/ports/" + strconv.Itoa(number)
	p := machine.Port{Number: number}
	p.LinkLayer = d.text(part, "link_layer")
	p.State = parseWords(d.text(part, "state"))
	p.PhysState = parseWords(d.text(part, "phys_state"))
	p.Rate = d.text(part, "rate")
	if p.Rate != "" {
		if gbps, err := parseRate(p.Rate); err == nil {
			p.RateGbps = &gbps
		} else {
			d.skip(part, "rate: "+err.Error())
		}
	}
	p.LID = d.lid(part, "lid")
	p.SMLID = d.lid(part, "sm_lid")
	if p.LinkLayer == machine.InfiniBand {
		p.PKeyIndex = d.defaultPartition(part)
	}
	if text := d.text(part, "gids/0"); text != "" {
		prefix, guid, err := parseGID(text)
		if err != nil {
			d.skip(part, "gids/0: "+err.Error())
		}
		p.GUID = guid
		if p.LinkLayer == machine.InfiniBand && prefix != machine.DefaultSubnetPrefix {
			p.SubnetPrefix = prefix
		}
	}
	p.Netdevs = d.netdevs(part, p, nics)
	return p
}

// defaultPartition finds 0x7fff, or 0xffff of a full member, among the first
// entries of pkeys; the kernel lists 128, and mostly the first is it.
func (d *device) defaultPartition(part string) int {
	const entries = 8
	for i := range entries {
		text := d.text(part, "pkeys/"+strconv.Itoa(i))
		if text == "" {
			break
		}
		if strings.HasSuffix(text, "7fff") || strings.HasSuffix(text, "ffff") {
			return i
		}
	}
	return 0
}

func (d *device) lid(part, attribute string) int {
	text := d.text(part, attribute)
	if text == "" {
		return 0
	}
	n, err := parseLID(text)
	if err != nil {
		d.skip(part, attribute+": "+err.Error())
	}
	return n
}

// netdevs finds the network devices of a port. On Ethernet the kernel names
// the one behind GID 0 (which may be a bond; unused entries answer EINVAL), or
// rxe's parent; else, and on InfiniBand, they are devices of the same function,
// port and kind.
func (d *device) netdevs(part string, p machine.Port, nics []sysfs.Interface) []machine.Netdev {
	tree := d.tree
	if p.LinkLayer != machine.InfiniBand {
		name := d.text(part, "gid_attrs/ndevs/0")
		if name == "" {
			name = d.text("", "parent")
		}
		if name != "" && !strings.ContainsAny(name, "/ ") {
			return []machine.Netdev{tree.Interface(name).Netdev}
		}
	}
	kind := "ether"
	if p.LinkLayer == machine.InfiniBand {
		kind = "infiniband"
	}
	var list []machine.Netdev
	for _, nic := range nics {
		if nic.Port == p.Number && nic.Type == kind && !nic.Representor {
			list = append(list, nic.Netdev)
		}
	}
	slices.SortFunc(list, func(a, b machine.Netdev) int { return machine.CompareNames(a.Name, b.Name) })
	return list
}

// bond fills the slaves of a RoCE LAG: one RDMA device, several cables. GID 0's
// network device is the bond, or on older kernels its active slave; the latter
// counts only under the name that mlx5 gives a LAG, since slaves of a bond
// without RoCE LAG are RDMA devices of their own.
func (d *device) bond(hca *machine.HCA) {
	tree := d.tree
	for i := range hca.Ports {
		if hca.Ports[i].LinkLayer == machine.InfiniBand {
			continue // A bond of IPoIB devices is not an RDMA device.
		}
		for _, nic := range hca.Ports[i].Netdevs {
			slaves := tree.Slaves(nic.Name)
			if master := tree.Master(nic.Name); len(slaves) == 0 && master != "" && strings.Contains(d.name, "bond") {
				slaves = tree.Slaves(master)
			}
			hca.BondSlaves = append(hca.BondSlaves, slaves...)
		}
	}
}

// charDevices maps RDMA devices to their nodes, by the class entries' own word
// (ibdev) and never by number. A node that the class promises and the device
// root lacks is noted and left out, unless the directory is missing:
// then this process does not see the host's devices.
func (r *Reader) charDevices(all *listing) {
	there := map[string]bool{}
	entries, err := os.ReadDir(r.dev)
	for _, entry := range entries {
		there[entry.Name()] = true
	}
	all.cm = there["rdma_cm"]
	all.nodes = map[string]machine.CharDevices{}
	for _, dir := range []string{"class/infiniband_verbs", "class/infiniband_mad"} {
		names, listErr := r.tree.List(dir)
		if listErr != nil {
			all.skipped = append(all.skipped, machine.Skipped{Name: dir, Reason: listErr.Error()})
		}
		slices.SortFunc(names, machine.CompareNames)
		for _, name := range names {
			// Read every time: a device that is renamed keeps its nodes.
			owner, readErr := r.tree.Read(dir + "/" + name + "/ibdev")
			if readErr != nil {
				continue // abi_version is a file of the class.
			}
			nodes := all.nodes[owner]
			switch {
			case err == nil && !there[name]:
				all.skipped = append(all.skipped, machine.Skipped{
					Name: owner + "/" + name, Reason: filepath.Join(r.dev, name) + " is not there",
				})
			case strings.HasPrefix(name, "uverbs"):
				nodes.UVerbs = append(nodes.UVerbs, name)
			case strings.HasPrefix(name, "umad"):
				nodes.UMAD = append(nodes.UMAD, name)
			case strings.HasPrefix(name, "issm"):
				nodes.ISSM = append(nodes.ISSM, name)
			}
			all.nodes[owner] = nodes
		}
	}
}
