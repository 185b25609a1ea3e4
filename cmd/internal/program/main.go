// Package program is what heddle's daemons have in common as programs: how they
// start and end, the flags that all of them take, how they log, which machine
// they read, and the address of /metrics, /healthz and /readyz. What a daemon
// does is its own.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// Main runs a program until it is done or is interrupted, and ends the process:
// with 0, with 2 for wrong flags, with 1 for any other error.
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

// ownProcess marks Main's context: what is the process's, such as klog's logger, is
// the daemon's then. A test that runs a daemon as a function has its own, and goroutines
// of others, which klog's logger must not be set beside.
type ownProcess struct{}

// started is when a daemon has made what it makes once.
const started = 20 * time.Second

// releaseEvery is how often free memory goes back. Each time costs a collection, of some
// ten milliseconds.
const releaseEvery = time.Minute

// SmallHeap trades processor time for memory: a daemon on every node makes
// little garbage, in bursts, and a smaller heap costs it a few milliseconds of
// collection a minute. What its start took besides goes back to the system soon,
// and then what bursts took; the runtime would keep it for minutes. GOGC in the
// environment wins. No daemon serves a heap profile, so none is taken. A process
// does so once.
func (f *Flags) SmallHeap() {
	if f.process != nil {
		return
	}
	runtime.MemProfileRate = 0
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
		time.AfterFunc(started, releaseMemory)
	}
}

// releaseMemory returns free memory to the system, now and from time to time.
func releaseMemory() {
	debug.FreeOSMemory()
	time.AfterFunc(releaseEvery, releaseMemory)
}

// ErrUsage means that the flags were wrong; the reason is already printed.
var ErrUsage = errors.New("usage")

// Daemon is one of heddle's daemons. It embeds [Flags].
type Daemon interface {
	// Register adds its own flags.
	Register(fs *flag.FlagSet)
	// Check finds what the flag package cannot.
	Check() error
	// Run works until ctx ends.
	Run(ctx context.Context, log *slog.Logger, stdout io.Writer) error
	// Common is the flags that all daemons have.
	Common() *Flags
}

// Flags are those of every daemon.
type Flags struct {
	// Config is a directory with the ConfigMap's keys as files, or empty.
	Config string
	// Kubeconfig is a file; empty means the pod's service account.
	Kubeconfig string

	version   bool
	logFormat string
	logLevel  slog.Level

	process *process // nil unless it runs other daemons too
	part    string   // the daemon's name there
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

// Run reads a daemon's flags and runs it. It fails with [flag.ErrHelp], with
// [ErrUsage] after the reason is on stderr, or as the daemon does.
func Run(ctx context.Context, name, version string, d Daemon, args []string, stdout, stderr io.Writer) error {
	if err := parse(name, d, args, stderr); err != nil {
		return err
	}
	return runParsed(ctx, name, version, d, stdout, stderr)
}

func runParsed(ctx context.Context, name, version string, d Daemon, stdout, stderr io.Writer) error {
	f := d.Common()
	if f.version {
		_, err := fmt.Fprintln(stdout, name, version)
		return err
	}
	log := f.logger(stderr)
	if ctx.Value(ownProcess{}) != nil {
		klog.SetSlogLogger(log)
	}
	if e, ok := d.(exclusive); ok {
		held, err := e.Enter(ctx, log)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil // It ends before it has begun.
		case err != nil:
			return err
		case held != nil:
			defer func() { _ = held.Close() }() // The process ends, which lets go of it in any case.
		}
	}
	return d.Run(ctx, log, stdout)
}

// exclusive is a daemon of which one process of a node works at a time, while the next
// one may be there already: the old one ends, and the next begins at once.
type exclusive interface {
	// Enter waits until no other process works, nor begins to until what it returns
	// is closed; nil if that does not matter. Nothing is done before.
	Enter(ctx context.Context, log *slog.Logger) (io.Closer, error)
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

// logger makes the daemon's log.
func (f *Flags) logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: f.logLevel}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if f.logFormat == "json" {
		h = slog.NewJSONHandler(w, o)
	}
	return slog.New(h)
}
