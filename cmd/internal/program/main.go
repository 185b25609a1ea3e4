// Package program holds the common parts of heddle's daemons: how they start and end,
// common flags, logs, the machine that they read, and the address of /metrics, /healthz
// and /readyz.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/host"
)

// Main runs a program until it returns or is interrupted, and exits: with 0, with 2 for
// wrong flags, with 1 for any other error.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(context.WithValue(ctx, ownProcess{}, true), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, ErrUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// ownProcess marks the context of Main: its daemon may set process-wide state such as
// klog's logger. Tests run daemons as functions beside other goroutines that use klog.
type ownProcess struct{}

const (
	// started is when a daemon has finished the work of its start.
	started = 20 * time.Second
	// releaseEvery is how often free memory is returned to the system. Each time costs a
	// garbage collection of about ten milliseconds, and page faults as many: once a minute they took a
	// sixth of a quiet device plugin's processor time.
	releaseEvery = 10 * time.Minute
	// collectAt is the percentage by which the heap grows between two collections. Below 50 an idle
	// daemon uses no less memory, and more processor time.
	collectAt = 50
)

// saveMemory trades processor time for memory. A daemon of a node waits most of the time,
// and makes little garbage, in bursts: a smaller heap costs it little. The runtime would
// keep memory that the start or a burst took for minutes, and a scheduler with caches for
// every CPU. GOGC and GOMAXPROCS in the environment win. No daemon serves a heap profile, so none is taken.
func saveMemory() {
	runtime.MemProfileRate = 0
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
		time.AfterFunc(started, releaseMemory)
	}
}

func releaseMemory() {
	debug.FreeOSMemory()
	time.AfterFunc(releaseEvery, releaseMemory)
}

// ErrUsage means that the flags were wrong; the reason is already printed.
var ErrUsage = errors.New("usage")

// Daemon is one of heddle's daemons. It embeds [Flags].
type Daemon interface {
	// Register adds the daemon's own flags.
	Register(fs *flag.FlagSet)
	// Check validates what the flag package cannot.
	Check() error
	// Run works until ctx ends.
	Run(ctx context.Context, log *slog.Logger, stdout io.Writer) error
	// Common returns the flags that all daemons have.
	Common() *Flags
}

// Flags are the flags of every daemon.
type Flags struct {
	// Config is a directory with the ConfigMap's keys as files, or empty.
	Config string
	// Kubeconfig is a file; empty means the pod's service account.
	Kubeconfig string

	version   bool
	logFormat string
	logLevel  slog.Level
}

// Common implements [Daemon].
func (f *Flags) Common() *Flags { return f }

func (f *Flags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.Config, "config", "", "directory with the ConfigMap's keys as files; empty: built-in defaults")
	fs.StringVar(&f.Kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig; empty: the pod's service account")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.TextVar(&f.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	fs.BoolVar(&f.version, "version", false, "print the version and exit")
}

// RunOne runs the daemon that the first argument names, with the flags behind it. It
// fails as [Run] does.
func RunOne(
	ctx context.Context, name, version string, daemons map[string]Daemon, args []string, stdout, stderr io.Writer,
) error {
	known := strings.Join(slices.Sorted(maps.Keys(daemons)), ", ")
	usage := fmt.Sprintf("Usage: %s DAEMON [FLAGS]\n\nDAEMON is one of %s; DAEMON --help prints its flags.\n", name, known)
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return ErrUsage
	}
	if d, ok := daemons[args[0]]; ok {
		if ctx.Value(ownProcess{}) != nil {
			saveMemory()
		}
		return Run(ctx, name+" "+args[0], version, d, args[1:], stdout, stderr)
	}
	switch strings.TrimLeft(args[0], "-") {
	case "version":
		_, err := fmt.Fprintln(stdout, name, version)
		return err
	case "help", "h":
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	}
	fmt.Fprintf(stderr, "%s: unknown daemon %q: want one of %s\n", name, args[0], known)
	return ErrUsage
}

// Run parses a daemon's flags and runs it. It fails with [flag.ErrHelp], with [ErrUsage]
// after the reason is on stderr, or as the daemon does.
func Run(ctx context.Context, name, version string, d Daemon, args []string, stdout, stderr io.Writer) error {
	if err := parse(name, d, args, stderr); err != nil {
		return err
	}
	f := d.Common()
	if f.version {
		_, err := fmt.Fprintln(stdout, name, version)
		return err
	}
	log := f.logger(stderr)
	if ctx.Value(ownProcess{}) != nil {
		klog.SetSlogLogger(log)
	}
	return d.Run(ctx, log, stdout)
}

func parse(name string, d Daemon, args []string, stderr io.Writer) error {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	f := d.Common()
	f.register(fs)
	d.Register(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return ErrUsage
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case f.logFormat != "text" && f.logFormat != "json":
		err = fmt.Errorf("--log-format: %q is neither text nor json", f.logFormat)
	case !f.version:
		err = d.Check()
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return ErrUsage
	}
	return nil
}

func (f *Flags) logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: f.logLevel}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if f.logFormat == "json" {
		h = slog.NewJSONHandler(w, o)
	}
	return slog.New(h)
}

// Host are the flags of a daemon that reads the machine it runs on; see [Host.Open].
type Host struct {
	host.Options
	// Machine is `host`, or a dump to replay.
	Machine string
}

// RegisterHost adds the flags to a set, with a daemon's own interval.
func (h *Host) RegisterHost(fs *flag.FlagSet, interval time.Duration) {
	fs.StringVar(&h.NodeName, "node-name", os.Getenv("NODE_NAME"),
		"name of this machine's Node; default $NODE_NAME, then the host name")
	fs.StringVar(&h.Machine, "machine", "host", "host, or a dump of `heddle inspect -o json` to replay")
	fs.DurationVar(&h.Interval, "interval", interval, "longest time between two scans of the machine")
	fs.StringVar(&h.SysfsRoot, "sysfs-root", "/sys", "where the host's sysfs is")
	fs.StringVar(&h.DevRoot, "dev-root", "/dev",
		"where the host's device nodes are; of a replayed machine one for each GPU, named by UUID")
	fs.StringVar(&h.ProcRoot, "proc-root", "/proc", "where the host's procfs is")
	fs.StringVar(&h.HostRoot, "host-root", "", "where the host's root directory is; empty: it is this process's")
	fs.StringVar(&h.DriverRoot, "driver-root", "", "where the GPU driver is installed on the host; empty: with "+
		"--host-root in /run/nvidia/driver or /, without where the dynamic loader finds its library")
}

// CheckHost validates the interval, and defaults the node's name.
func (h *Host) CheckHost() error {
	if h.Interval < time.Second {
		return fmt.Errorf("--interval: %s is less than 1s", h.Interval)
	}
	if h.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name is not set, and the host has no name: %w", err)
		}
		h.NodeName = name
	}
	return nil
}

// Released returns until when a Node's annotations ask to release its GPUs' driver, or
// zero. An invalid annotation asks for nothing: the device plugin reports it.
func Released(annotations map[string]string) time.Time {
	asked, _ := release.Parse(annotations[wellknown.GPURelease])
	return asked.Until
}

// IsReplay reports whether the machine comes from a dump.
func (h *Host) IsReplay() bool { return h.Machine != "host" }

// Machine is a machine and its changes: a host or a replay.
type Machine interface {
	Run(ctx context.Context) error
	// Scan reads now; it returns nil if nothing could be read.
	Scan(ctx context.Context) *machine.Machine
	// Machine is the newest machine, nil before the first.
	Machine() *machine.Machine
	Changed() <-chan struct{}
}

// Open returns the machine that the flags name. It validates a dump, and reads nothing of
// a host yet.
func (h *Host) Open(log *slog.Logger) (Machine, error) {
	if !h.IsReplay() {
		h.Logger = log
		return host.New(h.Options), nil
	}
	if _, err := host.LoadDump(h.Machine); err != nil {
		return nil, err
	}
	return host.NewReplay(h.Machine, h.NodeName, log), nil
}
