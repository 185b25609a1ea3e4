// Package host composes what the readers find into one machine.Machine and
// keeps it current.
//
// It owns the joining of facts that no reader has alone (an HCA's PCI function,
// its role, a GPU that NVML lost and the bus still has), the snapshot and the
// events that renew it. It parses nothing itself, and no caller of Machine
// ever waits for hardware.
package host

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/cpu"
	"github.com/heddle-dev/heddle/discovery/nvml"
	"github.com/heddle-dev/heddle/discovery/rdma"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// DefaultInterval is how often a scan runs without an event. InfiniBand port
// states change without one.
const DefaultInterval = 30 * time.Second

// Options say where the machine is. The zero value is this machine.
type Options struct {
	// SysfsRoot, DevRoot and ProcRoot are "/sys", "/dev" and "/proc".
	SysfsRoot, DevRoot, ProcRoot string
	// NodeName is Machine.Node.
	NodeName string
	// Logger gets changes at Info and scans at Debug; nil discards.
	Logger *slog.Logger
	// Interval is the slow ticker's; 0 is DefaultInterval.
	Interval time.Duration
	// DriverRoot is where the NVIDIA driver's library is looked for; empty
	// leaves that to the dynamic loader.
	DriverRoot string
	// NVML reads the GPUs; nil is the system's library.
	NVML nvml.Library
	// NVMLTimeout bounds a read of all GPUs; 0 is nvml.DefaultTimeout.
	NVMLTimeout time.Duration
}

// Host is one machine. Its methods may be called from any goroutine.
type Host struct {
	options  Options
	logger   *slog.Logger
	tree     sysfs.FS
	rdma     rdma.Reader
	netlink  rdma.Netlink
	gpus     *nvml.Reader
	changed  chan struct{}
	snapshot atomic.Pointer[machine.Machine]

	// mu makes scans take turns and guards what they remember.
	mu     sync.Mutex
	memory memory
}

// memory is what one scan leaves for the next.
type memory struct {
	// cpu does not change while the kernel runs, and is slow to read.
	cpu *machine.CPU
	// vpd by address and device: slow to read, fixed in the card.
	vpd map[string]sysfs.VPD
	// gpus are the last known identities, by PCI address.
	gpus map[string]machine.GPU
	// bus are the NVIDIA display functions of the last scan.
	bus []string
	// crossed is what rdmamap was last compared with, notes what it said.
	crossed []machine.HCA
	notes   []machine.Skipped
}

// New returns a host. Nothing is read yet.
func New(o Options) *Host {
	o.SysfsRoot = filepath.Clean(cmp.Or(o.SysfsRoot, "/sys"))
	o.DevRoot = filepath.Clean(cmp.Or(o.DevRoot, "/dev"))
	o.ProcRoot = filepath.Clean(cmp.Or(o.ProcRoot, "/proc"))
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.NVML == nil {
		o.NVML = nvml.System(o.DriverRoot)
	}
	tree := sysfs.New(o.SysfsRoot)
	return &Host{
		options: o, logger: o.Logger, tree: tree,
		rdma: rdma.New(tree, o.DevRoot), netlink: rdma.NewNetlink(tree.Root()),
		gpus:    nvml.NewReader(o.NVML, o.NVMLTimeout),
		changed: make(chan struct{}, 1),
		memory:  memory{vpd: map[string]sysfs.VPD{}, gpus: map[string]machine.GPU{}},
	}
}

// Machine is the last scan; nil before the first. It is never changed: a
// caller may keep it and must not write to it.
func (h *Host) Machine() *machine.Machine { return h.snapshot.Load() }

// Changed receives when a scan differs from the one before. Signals that
// nobody takes become one.
func (h *Host) Changed() <-chan struct{} { return h.changed }

// Scan reads the machine now. It never fails: what could not be read is in
// Probes and Skipped. It takes as long as the slowest reader, NVML's at most
// its timeout. A scan whose context ends before it does is not kept.
func (h *Host) Scan(ctx context.Context) *machine.Machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	began := time.Now()
	m := h.compose(ctx)
	if ctx.Err() != nil {
		// Cut short: GPUs that were not waited for look as if they hung.
		return m
	}
	last := h.snapshot.Load()
	if last != nil && reflect.DeepEqual(last, m) {
		h.logger.Debug("scanned", "took", time.Since(began), "changed", false)
		return last
	}
	h.snapshot.Store(m)
	h.logger.Info("machine changed", "took", time.Since(began), "gpus", len(m.GPUs), "hcas", len(m.HCAs),
		"skipped", len(m.Skipped))
	signal(h.changed)
	return m
}

// Close ends the session with NVML.
func (h *Host) Close(ctx context.Context) error { return h.gpus.Close(ctx) }

// compose runs the readers in the order of what they need from one another.
func (h *Host) compose(ctx context.Context) *machine.Machine {
	m := &machine.Machine{Version: machine.Version, Node: h.options.NodeName}
	h.readCPU(m)
	h.readRDMA(m)
	h.readPCI(m)
	h.readGPUs(ctx, m)
	h.joinHCAs(m)
	m.Sort()
	return m
}

// readCPU identifies the processor once; NUMA nodes may come later, with the
// memory of a GPU.
func (h *Host) readCPU(m *machine.Machine) {
	m.Product = h.tree.DMI().Product
	m.Kernel = sysfs.New(h.options.ProcRoot).Text("sys/kernel/osrelease")
	probe := machine.Probe{Name: "cpu", State: machine.ProbeOK}
	if h.memory.cpu == nil {
		c, err := cpu.Read(h.options.ProcRoot, h.tree)
		if err != nil {
			probe = failed("cpu", err)
		} else {
			h.memory.cpu = &c
		}
		m.CPU = c
	} else {
		m.CPU = *h.memory.cpu
	}
	nodes, skipped, err := h.tree.NUMA()
	if err != nil {
		probe = failed("cpu", err)
	}
	m.CPU.NUMA = nodes
	m.Probes = append(m.Probes, probe)
	m.Skipped = append(m.Skipped, skipped...)
}

func (h *Host) readRDMA(m *machine.Machine) {
	found, err := h.rdma.Read()
	m.HCAs, m.RDMA.RDMACM = found.HCAs, found.CM
	m.Skipped = append(m.Skipped, found.Skipped...)
	switch {
	case err != nil:
		m.Probes = append(m.Probes, failed("rdma", err))
	case found.Absent != "":
		m.Probes = append(m.Probes, machine.Probe{Name: "rdma", State: machine.ProbeAbsent, Reason: found.Absent})
	default:
		m.Probes = append(m.Probes, machine.Probe{Name: "rdma", State: machine.ProbeOK})
	}
	if !reflect.DeepEqual(h.memory.crossed, found.HCAs) {
		h.memory.notes = h.rdma.CrossCheck(found.HCAs)
		h.memory.crossed = found.HCAs
	}
	m.Skipped = append(m.Skipped, h.memory.notes...)
	mode, notes, probe := h.netlink.Read(found.HCAs)
	m.RDMA.NetnsMode = mode
	m.Skipped = append(m.Skipped, notes...)
	m.Probes = append(m.Probes, probe)
}

func (h *Host) readPCI(m *machine.Machine) {
	carry := map[string]bool{}
	for i := range m.HCAs {
		carry[m.HCAs[i].PCI] = true
	}
	functions, skipped, err := h.tree.PCI(carry)
	m.PCI = functions
	m.Skipped = append(m.Skipped, skipped...)
	switch {
	case err != nil:
		m.Probes = append(m.Probes, failed("sysfs", err))
	case len(functions) == 0 && !h.tree.Exists("bus/pci"):
		m.Probes = append(m.Probes, machine.Probe{
			Name: "sysfs", State: machine.ProbeAbsent, Reason: h.tree.Path("bus/pci") + " is not there",
		})
	default:
		m.Probes = append(m.Probes, machine.Probe{Name: "sysfs", State: machine.ProbeOK})
	}
}

func failed(name string, err error) machine.Probe {
	return machine.Probe{Name: name, State: machine.ProbeFailed, Reason: err.Error()}
}
