// Command heddle-topo-worker finds out where the cables of its node end and
// publishes that as the node's NodeTopology.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"k8s.io/klog/v2"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "heddle-topo-worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	if o.version {
		_, err := fmt.Fprintln(stdout, "heddle-topo-worker", version)
		return err
	}
	log := slog.New(o.handler(stderr))
	klog.SetSlogLogger(log) // client-go logs through klog
	// A pass makes little garbage: a smaller heap costs a few milliseconds of
	// collection a minute. GOGC in the environment wins.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
	if o.oneshot {
		return once(ctx, o, log, stdout)
	}
	return daemon(ctx, o, log)
}
