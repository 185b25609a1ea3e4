package kfd

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// Library reads AMD's GPUs.
type Library struct {
	fs      sysfs.FS
	devRoot string
	links   *gpu.LinkCounters
	// now is the topology that Open found; calls of GPU may run at once.
	now atomic.Pointer[topology]
}

// New returns the GPUs of the machine with the sysfs and /dev of the options.
func New(o gpu.Options) *Library {
	return &Library{fs: sysfs.New(cmp.Or(o.SysfsRoot, "/sys")), devRoot: cmp.Or(o.DevRoot, "/dev"), links: o.LinkCounters}
}

// Open implements [gpu.Library]: it reads the topology, so that GPUs and
// partitions that came or went are seen by every scan.
func (l *Library) Open() (machine.Driver, int, error) {
	if !l.fs.Exists("module/amdgpu") {
		return machine.Driver{}, 0, fmt.Errorf("KFD is %w: the amdgpu driver is not loaded", gpu.ErrAbsent)
	}
	if !l.fs.Exists(nodesDir) {
		return machine.Driver{}, 0, fmt.Errorf("KFD is %w: %s is missing", gpu.ErrAbsent, l.fs.Path(nodesDir))
	}
	t, err := readTopology(l.fs)
	if err != nil && len(t.devices) == 0 {
		return machine.Driver{}, 0, err
	}
	l.now.Store(&t)
	// The kernel's own amdgpu has no version, but a hash of its sources.
	version := cmp.Or(l.fs.Text("module/amdgpu/version"), l.fs.Text("module/amdgpu/srcversion"))
	return machine.Driver{Version: version, Vendor: Vendor().Domain}, len(t.devices), nil
}

// Close implements [gpu.Library]; nothing is held open.
func (l *Library) Close() error { return nil }

// GPU implements [gpu.Library].
func (l *Library) GPU(index int) (machine.GPU, error) {
	t := l.now.Load()
	if t == nil || index >= len(t.devices) {
		return machine.GPU{}, fmt.Errorf("GPU %d: %w", index, gpu.ErrLost)
	}
	d := &t.devices[index]
	first := d.nodes[0]
	dir := "bus/pci/devices/" + d.address
	g := machine.GPU{
		Vendor: Vendor().Domain, Index: index, PCI: d.address, Minor: new(first.render()),
		UUID: t.identity(index), Architecture: architecture(first.properties["gfx_target_version"]),
		Product: product(l.fs.Text(dir+"/product_name"), first.properties["device_id"]),
	}
	if !l.fs.Exists(dir) {
		return g, fmt.Errorf("%s: GPU is %w", l.fs.Path(dir), gpu.ErrLost)
	}
	incomplete := gpu.IncompleteError{}
	var err error
	g.MemoryMiB, err = l.memory(d)
	incomplete.Note(gpu.PartMemory, err)
	g.NVLinks, err = t.links(l.fs, d)
	incomplete.Note(gpu.PartLinks, err)
	g.MIG, err = l.partitions(&g, d, t.fault)
	incomplete.Note(gpu.PartPartitions, err)
	g.Attributes = attributes(&g, d)
	g.Health = l.health(dir, incomplete)
	if l.links.Due(g.UUID) {
		l.links.Put(g.UUID, l.linkErrors(dir))
	}
	return g, incomplete.Err()
}

// health returns the health that the driver reports of a GPU. Firmware that does not answer comes before
// counters: a configuration may have uncorrectable errors change nothing.
func (l *Library) health(dir string, incomplete gpu.IncompleteError) machine.Health {
	counted := l.faults(dir, incomplete)
	if reason := unmanaged(l.fs.Bytes(dir+"/gpu_metrics", maxMetrics)); reason != "" {
		return machine.Health{State: machine.Unhealthy, Reason: reason}
	}
	if counted != "" {
		return machine.Health{State: machine.Unhealthy, Cause: machine.UncorrectableErrors, Reason: counted}
	}
	return machine.Health{State: machine.Healthy}
}

// linkErrors reads the corrected errors of all XGMI links of a GPU; uncorrectable ones make it unhealthy.
func (l *Library) linkErrors(dir string) map[string]machine.LinkErrors {
	n, err := parseErrors(l.fs.Text(dir+"/ras/xgmi_wafl_err_count"), "ce")
	if err != nil || n > math.MaxInt64 {
		return nil
	}
	return map[string]machine.LinkErrors{"XGMI": {"xgmi-errors": int64(n)}}
}

// identity returns "GPU-" and unique_id as ROCm writes it (ROCR_VISIBLE_DEVICES takes
// it). A GPU without one, or with that of another, as virtual functions have it,
// is known by its place on the bus.
func (t *topology) identity(index int) string {
	d := &t.devices[index]
	id := d.nodes[0].properties["unique_id"]
	same := slices.IndexFunc(t.devices, func(o device) bool { return o.nodes[0].properties["unique_id"] == id })
	if id == 0 || same != index {
		return "GPU-" + strings.NewReplacer(":", "-", ".", "-").Replace(d.address)
	}
	return fmt.Sprintf("GPU-%016x", id)
}

// memory is mem_info_vram_total, in bytes; where the driver does not report it,
// the sum of the memory banks of all partitions.
func (l *Library) memory(d *device) (int64, error) {
	name := "bus/pci/devices/" + d.address + "/mem_info_vram_total"
	text, err := l.fs.Read(name)
	if err != nil && !sysfs.Unknown(err) {
		return 0, err
	}
	if err == nil {
		total, parseErr := strconv.ParseInt(text, 10, 64)
		if parseErr != nil {
			return 0, fmt.Errorf("parse %s: %w", l.fs.Path(name), parseErr)
		}
		return max(total>>20, 0), nil
	}
	var sum int64
	for _, n := range d.nodes {
		mib, err := l.banks(n)
		if err != nil {
			return 0, err
		}
		sum += mib
	}
	return sum, nil
}

// banks returns the memory of a topology node in MiB, of its mem_banks.
func (l *Library) banks(n node) (int64, error) {
	all, err := readEach(l.fs, fmt.Sprintf("%s/%d/mem_banks", nodesDir, n.id), "size_in_bytes")
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, p := range all {
		sum += int64(p["size_in_bytes"] >> 20)
	}
	return sum, nil
}

// faults returns the uncorrectable errors that RAS reports, empty without any.
func (l *Library) faults(dir string, incomplete gpu.IncompleteError) string {
	names, err := l.fs.List(dir + "/ras")
	if err != nil {
		incomplete.Note(gpu.PartECC, err)
		return ""
	}
	var found []string
	for _, name := range names {
		block, counts := strings.CutSuffix(name, "_err_count")
		if aca, isACA := strings.CutPrefix(name, "aca_"); isACA {
			block, counts = aca, true
		}
		if !counts {
			continue
		}
		text, err := l.fs.Read(dir + "/ras/" + name)
		if sysfs.Unknown(err) {
			continue // The block counts nothing.
		}
		var n uint64
		if err == nil {
			n, err = parseErrors(text, "ue")
		}
		if err != nil {
			incomplete.Note(gpu.PartECC, fmt.Errorf("RAS block %s: %w", block, err))
		} else if n > 0 {
			found = append(found, fmt.Sprintf("%d uncorrectable errors of %s", n, block))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "RAS counts " + strings.Join(found, ", ")
}

var errChanging = errors.New("the partition mode is being changed")

// maxMetrics bounds gpu_metrics; the tables of all revisions have less.
const maxMetrics = 64 << 10

// unmanaged returns why a GPU's management firmware does not answer; empty if it does, or if the
// driver has no table for the GPU. gpu_metrics begins with the table's size, 16 bits in little
// endian (metrics_table_header in the kernel's kgd_pp_interface.h); reading it has the driver ask
// the firmware. One that hangs answers with these errors, or with ones in all bits, as a device
// that left the bus does.
func unmanaged(table []byte, err error) string {
	switch {
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ETIME), errors.Is(err, unix.ETIMEDOUT):
		return fmt.Sprintf("its management firmware does not answer: %v", err)
	case err != nil, len(table) == 0:
		return ""
	case len(table) < 4 || binary.LittleEndian.Uint16(table) == math.MaxUint16:
		return fmt.Sprintf("its management firmware does not answer: gpu_metrics has %d bytes and not a table", len(table))
	}
	return ""
}

// Generate implements [gpu.EditsGenerator]: a container gets /dev/kfd, which all
// GPUs share, and of each GPU or partition the render node and the card, with the
// groups that own them. The images have the libraries. The kernel closes the others: their render nodes
// cannot be opened.
func (l *Library) Generate(m *machine.Machine) (*gpu.Edits, error) {
	out := &gpu.Edits{Missing: map[string]string{}}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if len(g.MIG.Devices) == 0 {
			l.add(out, g.UUID, g.Minor)
		}
		for j := range g.MIG.Devices {
			l.add(out, g.MIG.Devices[j].UUID, g.MIG.Devices[j].Minor)
		}
	}
	return out, nil
}

// Fingerprint implements [gpu.EditsGenerator].
func (l *Library) Fingerprint() string {
	return gpu.Fingerprint(filepath.Join(l.devRoot, "kfd"), filepath.Join(l.devRoot, "dri", "*"))
}

// add makes the device of a GPU or a partition, or returns why it cannot.
func (l *Library) add(out *gpu.Edits, uuid string, minor *int) {
	if minor == nil {
		out.Missing[uuid] = "its render node is not known"
		return
	}
	names, err := l.fs.List("class/drm/renderD" + strconv.Itoa(*minor) + "/device/drm")
	if err != nil {
		out.Missing[uuid] = err.Error()
		return
	}
	out.AddDRM(uuid, l.devRoot, "kfd", *minor, names)
}
