package gpu

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Edits describe what containers need of a driver.
type Edits struct {
	// Common is for every container with a GPU: libraries, control nodes.
	Common specs.ContainerEdits
	// Devices are named by UUID, and those of [Features] by their names.
	Devices []specs.Device
	// Channels are the nodes of the IMEX channels that containers get if their pods ask
	// for them, by number; see [Features].
	Channels map[int]*specs.DeviceNode
	// Missing are devices that could not be made, and why.
	Missing map[string]string
	// Problems are other reasons that keep programs in containers from working, and what
	// to do. They last until [EditsGenerator].Fingerprint changes.
	Problems []string
}

// EditsGenerator makes the content of a driver's static CDI spec. It may take
// seconds, or hang with the driver. The [Library] of a vendor has one for real
// GPUs; [ReplayedEdits] is for those of a machine file.
type EditsGenerator interface {
	Generate(m *machine.Machine) (*Edits, error)
	// Fingerprint differs when Generate would find other files on the node than
	// before: a control node, a socket or a feature came, went or was replaced.
	// It takes a few calls of stat and asks no driver.
	Fingerprint() string
}

// Features are optional parts for containers with GPUs, if the host has them:
// GDRCopy is /dev/gdrdrv, GDS the nodes of GPUDirect Storage.
type Features struct {
	GDRCopy, GDS bool
	// IMEX are channels for memory that GPUs of several nodes share over NVLink:
	// a number, a comma list of numbers, or [AllChannels]; empty for none.
	IMEX string
	// IMEXByPod: a container gets those of them that its pod asks for.
	IMEXByPod bool
}

// ReplayedEdits makes CDI devices for the GPUs of a machine file out of device nodes
// made for them: the character device DIR/UUID stands for the GPU
// or MIG device UUID, and a container finds it where it would find the real
// one, as [Vendor.Node] and its number: the GPU's minor or else its index. An
// instance is NODE-M, M counted from 0. Libraries are not needed: this is for
// tests of the device cgroup and for demos.
type ReplayedEdits struct {
	// Dir is the directory, as the container runtime sees it.
	Dir string
	// Vendors are the vendors of the GPUs.
	Vendors Vendors
}

// Generate implements [EditsGenerator]. A GPU without a node is missing, and what is
// not a character device too.
func (r ReplayedEdits) Generate(m *machine.Machine) (*Edits, error) {
	out := &Edits{Missing: map[string]string{}}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		number := g.Index
		if g.Minor != nil {
			number = *g.Minor
		}
		vendor := r.Vendors.Of(m, g)
		if vendor == nil {
			out.Missing[g.UUID] = "the vendor of " + g.PCI + " is not known"
			continue
		}
		path := vendor.Node + strconv.Itoa(number)
		if len(g.MIG.Devices) == 0 {
			out.add(r.Dir, g.UUID, path)
		}
		for j := range g.MIG.Devices {
			d := &g.MIG.Devices[j]
			node := path + "-" + strconv.Itoa(j)
			if d.Minor != nil {
				node = vendor.Node + strconv.Itoa(*d.Minor)
			}
			out.add(r.Dir, d.UUID, node)
		}
	}
	return out, nil
}

// Fingerprint implements [EditsGenerator].
func (r ReplayedEdits) Fingerprint() string { return Fingerprint(filepath.Join(r.Dir, "*")) }

// Fingerprint returns one line for every file that matches a pattern: its path, its
// type, and the numbers of a device node. Sockets and nodes differ from those
// that they replace only by these.
func Fingerprint(patterns ...string) string {
	var b strings.Builder
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(pattern) // The patterns are well-formed.
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil {
				continue
			}
			var device uint64
			if s, ok := info.Sys().(*syscall.Stat_t); ok {
				device = uint64(s.Rdev) //nolint:unconvert // It is int32 on some systems.
			}
			fmt.Fprintf(&b, "%s %s %x\n", path, info.Mode(), device)
		}
	}
	return b.String()
}

func (e *Edits) add(dir, uuid, path string) {
	host := filepath.Join(dir, filepath.Base(uuid))
	if _, err := charDevice(host); err != nil {
		e.Missing[uuid] = err.Error()
		return
	}
	e.Devices = append(e.Devices, specs.Device{Name: uuid, ContainerEdits: specs.ContainerEdits{
		DeviceNodes: []*specs.DeviceNode{{Path: path, HostPath: host, Type: "c", Permissions: "rw"}},
	}})
}

// AllChannels are all IMEX channels that the node has.
const AllChannels = "all"

// maxChannel is the highest number of a channel: it is the minor of a device node, which
// has 20 bits.
const maxChannel = 1<<20 - 1

// maxQuoted is how much of a word an error repeats, in bytes.
const maxQuoted = 32

// ParseChannels reads a comma list of IMEX channels.
func ParseChannels(list string) ([]int, error) {
	var numbers []int
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n > maxChannel || strconv.Itoa(n) != word {
			return nil, fmt.Errorf("invalid IMEX channel %q: want numbers such as 0", wellknown.ClipTo(word, maxQuoted))
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// AddDRM adds the CDI device of a GPU with nodes below /dev/dri: the node
// control, which all its GPUs share, the render node with that minor number, and the
// cards among the names of the GPU's DRM devices in sysfs, with the groups that own
// them. devRoot is where /dev is. A device that cannot be made is missing; a node that root
// alone may open is a problem.
func (e *Edits) AddDRM(uuid, devRoot, control string, minor int, names []string) {
	device, closed, err := drmDevice(uuid, devRoot, control, minor, names)
	if err != nil {
		e.Missing[uuid] = err.Error()
		return
	}
	e.Devices = append(e.Devices, *device)
	for _, problem := range closed {
		if !slices.Contains(e.Problems, problem) {
			e.Problems = append(e.Problems, problem)
		}
	}
}

func drmDevice(
	uuid, devRoot, control string, minor int, names []string,
) (device *specs.Device, closed []string, err error) {
	paths := []string{control, "dri/renderD" + strconv.Itoa(minor)}
	for _, name := range names {
		// A card has the same device in sysfs as its render node, and another number.
		if number, ok := strings.CutPrefix(name, "card"); ok && strings.Trim(number, "0123456789") == "" {
			paths = append(paths, "dri/"+name)
		}
	}
	d := &specs.Device{Name: uuid}
	e := &d.ContainerEdits
	for _, path := range paths {
		host := filepath.Join(devRoot, path)
		info, err := charDevice(host)
		if err != nil {
			return nil, nil, err
		}
		node := &specs.DeviceNode{Path: "/dev/" + path, Permissions: "rw"}
		if node.Path != host {
			node.HostPath = host
		}
		e.DeviceNodes = append(e.DeviceNodes, node)
		s, ok := info.Sys().(*syscall.Stat_t)
		if ok && s.Gid != 0 && !slices.Contains(e.AdditionalGIDs, s.Gid) {
			e.AdditionalGIDs = append(e.AdditionalGIDs, s.Gid)
		}
		const group, others = 0o060, 0o006
		// Programs that compute do without the primary node.
		mode, primary := info.Mode().Perm(), strings.HasPrefix(path, "dri/card")
		if ok && !primary && mode&others != others && (mode&group != group || s.Gid == 0) {
			closed = append(closed, fmt.Sprintf("%s has mode %04o and group %d: only containers that run as root can open it; "+
				"a udev rule gives it a group", host, mode, s.Gid))
		}
	}
	return d, closed, nil
}

// charDevice finds a character device.
func charDevice(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&fs.ModeCharDevice == 0 {
		err = fmt.Errorf("%s is not a character device", path)
	}
	return info, err
}
