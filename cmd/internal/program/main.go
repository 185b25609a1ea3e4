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
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// Main runs a program until it is done or is interrupted, and ends the process:
// with 0, with 2 for wrong flags, with 1 for any other error.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
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

// SmallHeap trades processor time for memory: a daemon on every node makes
// little garbage, in bursts, and a smaller heap costs it a few milliseconds of
// collection a minute. GOGC in the environment wins.
func SmallHeap() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
}
