// Package host composes what the readers find into one machine.Machine and
// keeps it current.
//
// It owns the joining of facts that no reader has alone (an HCA's PCI function,
// its role, a GPU that the driver lost and the bus still has), the snapshot and the
// events that renew it. It parses nothing itself, and no caller of Machine
// ever waits for hardware.
package host

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/cpu"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/kfd"
	"github.com/heddle-dev/heddle/discovery/gpu/mxcd"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/discovery/rdma"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/internal/notify"
)

// DefaultInterval is how often a scan runs without an event. InfiniBand port
// states change without one.
const DefaultInterval = 30 * time.Second

// Options locate the machine. The zero value is this machine.
type Options struct {
	// SysfsRoot, DevRoot and ProcRoot are "/sys", "/dev" and "/proc".
	SysfsRoot, DevRoot, ProcRoot string
	// NodeName is Machine.Node.
	NodeName string
	// Logger gets changes at Info and scans at Debug; nil discards.
	Logger *slog.Logger
	// Interval is the slow ticker's; 0 is DefaultInterval.
	Interval time.Duration
	// HostRoot and DriverRoot locate the GPUs' drivers, as [gpu.Options] has them.
	HostRoot, DriverRoot string
	// GPUs are read by these; nil are all vendors that heddle supports, with LinkCounters.
	GPUs         gpu.Sources
	LinkCounters *gpu.LinkCounters
	// Hold keeps the sessions with the drivers open between scans, for a daemon
	// that waits for their events. An open session keeps a driver from being
	// unloaded, and a GPU from being reset.
	Hold bool
	// Release lets go of the drivers for a time; nil does not. Before has the GPUs
	// of a Host that begins under a release, or is nil.
	Release *Release
	Before  *machine.Machine
	// Timeout bounds each reader; 0 is bounded.DefaultTimeout.
	Timeout time.Duration
}

// Host is one machine. Its methods may be called from any goroutine.
type Host struct {
	options  Options
	logger   *slog.Logger
	tree     sysfs.FS
	rdma     *rdma.Reader
	gpus     []*gpu.Reader
	vendors  gpu.Vendors
	changed  notify.Signal
	snapshot atomic.Pointer[machine.Machine]

	// deaf: the kernel's events do not arrive.
	deaf atomic.Bool

	// mu serializes scans and guards what one leaves for the next: parts of a
	// machine, vital product data, and the roles of HCAs.
	mu        sync.Mutex
	still     still
	moving    bounded.Call[string]
	processor bounded.Reading[machine.Machine]
	functions bounded.Reading[machine.Machine]
	vpd       bounded.Reading[vpd]
	roles     memory
}

// New returns a host. Nothing is read yet.
func New(o Options) *Host {
	o.SysfsRoot = filepath.Clean(cmp.Or(o.SysfsRoot, "/sys"))
	o.DevRoot = filepath.Clean(cmp.Or(o.DevRoot, "/dev"))
	o.ProcRoot = filepath.Clean(cmp.Or(o.ProcRoot, "/proc"))
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	o.Timeout = cmp.Or(o.Timeout, bounded.DefaultTimeout)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Release == nil {
		o.Release = NewRelease()
		o.Release.known = true
	}
	if o.GPUs == nil {
		o.GPUs = OpenGPUs(gpu.Options{
			HostRoot: o.HostRoot, DriverRoot: o.DriverRoot, SysfsRoot: o.SysfsRoot, LinkCounters: o.LinkCounters,
		})
	}
	tree := sysfs.New(o.SysfsRoot)
	h := &Host{
		options: o, logger: o.Logger, tree: tree,
		rdma:    rdma.New(tree, o.DevRoot, o.Timeout),
		vendors: o.GPUs.Vendors(),
		changed: notify.New(),
	}
	for _, source := range o.GPUs {
		h.gpus = append(h.gpus, gpu.NewReader(source, o.Timeout))
	}
	return h
}

// Machine returns the last scan; nil before the first. It is never changed: a
// caller may keep it and must not write to it.
func (h *Host) Machine() *machine.Machine { return h.snapshot.Load() }

// Changed receives when a scan differs from the one before. Several
// signals may come as one.
func (h *Host) Changed() <-chan struct{} { return h.changed }

// Scan reads the machine now. It never fails: what could not be read is in
// Probes and Skipped. A reader that hangs costs its timeout once; then its last
// good values stand until it answers. A scan with a context that ends before it does
// is not kept.
func (h *Host) Scan(ctx context.Context) *machine.Machine { return h.scan(ctx, false) }

// scan is Scan. A quick one reads the machine without its GPUs only if something of it may differ.
func (h *Host) scan(ctx context.Context, quick bool) *machine.Machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	began, released := time.Now(), h.options.Release.Active()
	m := h.compose(ctx, released, quick)
	var open error
	if released || !h.options.Hold {
		if open = h.Close(ctx); open != nil {
			h.logger.Warn("a session with a GPU driver stays open", "err", open)
		}
	}
	if ctx.Err() != nil {
		// Cut short: GPUs that were not waited for look as if they hung.
		return m
	}
	last := h.snapshot.Load()
	if !released && last != nil && h.restart() != nil {
		// The last good machine stands until another process reads the driver.
		return last
	}
	// Only once the snapshot has what the drivers answered.
	defer h.options.Release.note(released, open)
	if last != nil && reflect.DeepEqual(last, m) {
		h.logger.Debug("scanned", "took", time.Since(began), "changed", false)
		return last
	}
	h.snapshot.Store(m)
	h.logger.Info("machine changed", "took", time.Since(began), "gpus", len(m.GPUs), "hcas", len(m.HCAs),
		"skipped", len(m.Skipped))
	h.changed.Notify()
	return m
}

// restart is why this process must end: a gpu.ErrRestart.
func (h *Host) restart() error {
	for _, r := range h.gpus {
		if err := r.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the sessions with the GPU drivers.
func (h *Host) Close(ctx context.Context) error {
	var errs []error
	for _, v := range h.gpus {
		errs = append(errs, v.Close(ctx))
	}
	return errors.Join(errs...)
}

// compose runs the readers in the order of what they need from one another.
func (h *Host) compose(ctx context.Context, released, quick bool) *machine.Machine {
	m := h.withoutGPUs(ctx, quick)
	if released {
		h.keepGPUs(m)
	} else {
		for _, vendor := range h.gpus {
			vendor.Read(ctx, m)
		}
	}
	m.Sort()
	return m
}

// readCPU identifies the processor unless it is known: it does not change while
// the kernel runs, and is slow to read. NUMA nodes may come later, with the
// memory of a GPU.
func (h *Host) readCPU(ctx context.Context, m *machine.Machine) {
	known, isKnown := h.processor.Last()
	found, err := h.processor.Read(ctx, h.options.Timeout, func() (machine.Machine, error) {
		p := machine.Machine{
			CPU: known.CPU, Product: h.tree.Text("class/dmi/id/product_name"),
			Kernel: sysfs.New(h.options.ProcRoot).Text("sys/kernel/osrelease"),
		}
		var errs [2]error
		if !isKnown {
			p.CPU, errs[0] = cpu.Read(h.options.ProcRoot, h.tree)
		}
		p.CPU.NUMA, p.Skipped, errs[1] = h.tree.NUMA()
		return p, errors.Join(errs[:]...)
	})
	m.CPU, m.Product, m.Kernel = found.CPU, found.Product, found.Kernel
	m.CPU.NUMA = slices.Clone(m.CPU.NUMA)
	m.Skipped = append(m.Skipped, found.Skipped...)
	m.Probes = append(m.Probes, bounded.Probe("cpu", h.options.Timeout, err))
}

func (h *Host) readRDMA(ctx context.Context, m *machine.Machine) {
	found := h.rdma.Read(ctx)
	m.HCAs, m.RDMA = found.HCAs, found.RDMA
	m.Skipped, m.Probes = append(m.Skipped, found.Skipped...), append(m.Probes, found.Probes...)
}

func (h *Host) readPCI(ctx context.Context, m *machine.Machine) {
	carry := map[string]bool{}
	for i := range m.HCAs {
		carry[m.HCAs[i].PCI] = true
	}
	found, err := h.functions.Read(ctx, h.options.Timeout, func() (f machine.Machine, err error) {
		f.PCI, f.Skipped, err = h.tree.PCI(carry, h.vendors)
		return f, err
	})
	m.PCI = slices.Clone(found.PCI)
	m.Skipped = append(m.Skipped, found.Skipped...)
	probe := bounded.Probe("sysfs", h.options.Timeout, err)
	if err == nil && len(m.PCI) == 0 && !h.tree.Exists("bus/pci") {
		probe.State, probe.Reason = machine.ProbeAbsent, h.tree.Path("bus/pci")+" is not there"
	}
	m.Probes = append(m.Probes, probe)
}

// debounce is how long events are gathered before a scan. An RDMA device brings
// a dozen; a pod's network device brings two for each pod.
const debounce = 200 * time.Millisecond

// Run keeps the machine current until ctx ends, and then returns nil: a scan at
// the start, after kernel events, when a release of the drivers begins or ends,
// and every Interval. The latter reads the GPUs and what else changes without an
// event, and all of the machine every [readEvery]. Where the kernel gives no events
// (another system, no permission), the interval is all there is, each scan reads
// all, and that is logged once. It returns a gpu.ErrRestart when a driver was
// upgraded under this process.
func (h *Host) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	events := notify.New()
	wait := h.watch(ctx, events)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		if err := wait(); err != nil && ctx.Err() == nil {
			h.deaf.Store(true)
			h.logger.Warn("no kernel events, scanning by the clock only", "err", err, "interval", h.options.Interval)
		}
	})
	return h.loop(ctx, events)
}

func (h *Host) loop(ctx context.Context, events <-chan struct{}) error {
	ticker := time.NewTicker(h.options.Interval)
	defer ticker.Stop()
	h.options.Release.await(ctx)
	h.Scan(ctx)
	var quiet <-chan time.Time // Nil outside of a burst of events.
	for h.restart() == nil {
		ended := h.options.Release.ended()
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			if quiet == nil {
				quiet = time.After(debounce)
			}
		case <-quiet:
			quiet = nil
			h.Scan(ctx)
		case <-h.options.Release.set:
			h.Scan(ctx)
		case <-ended:
			h.Scan(ctx)
		case <-ticker.C:
			h.scan(ctx, !h.deaf.Load())
		}
	}
	return h.restart()
}

// Vendors are the supported vendors of GPUs, in the order of preference. A new one is a line in [OpenGPUs], and a
// package beside discovery/gpu/nvml.
func Vendors() gpu.Vendors { return OpenGPUs(gpu.Options{}).Vendors() }

// OpenGPUs returns the machine's GPUs of all vendors. Nothing is read yet.
func OpenGPUs(o gpu.Options) gpu.Sources {
	return gpu.Sources{
		{Vendor: nvml.Vendor(), Library: nvml.New(o)},
		{Vendor: kfd.Vendor(), Library: kfd.New(o)},
		{Vendor: mxcd.Vendor(), Library: mxcd.New(o)},
	}
}
