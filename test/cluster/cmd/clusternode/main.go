//go:build linux

// Command clusternode is what the test cluster starts its processes through. It
// is not meant for people.
//
//	clusternode hold -layout JSON -ready FILE
//	clusternode enter [-cgroup FILE]... [-holder PID] [-dir DIR] -- COMMAND ARGS...
//	clusternode forward -listen ADDR -port-file FILE -netns FILE -to ADDR
//	clusternode service -at ADDR -namespace NAME -name NAME -pki DIR -api ADDR -ready FILE
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/cluster/internal/nodens"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "clusternode:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("want hold, enter, forward or service")
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	fs.SetOutput(stderr)
	switch args[0] {
	case "hold":
		return hold(ctx, fs, args[1:])
	case "enter":
		return enter(fs, args[1:])
	case "forward":
		return forward(ctx, fs, args[1:])
	case "service":
		return service(ctx, fs, args[1:])
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

func hold(ctx context.Context, fs *flag.FlagSet, args []string) error {
	text := fs.String("layout", "{}", "the node's mounts and addresses, JSON")
	ready := fs.String("ready", "", "file to create when the node is set up")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var layout nodens.Layout
	if err := json.Unmarshal([]byte(*text), &layout); err != nil {
		return fmt.Errorf("parse layout: %w", err)
	}
	return nodens.Hold(ctx, layout, *ready)
}

func enter(fs *flag.FlagSet, args []string) error {
	var e nodens.Entry
	fs.Func("cgroup", "cgroup.procs file to join (repeatable)", func(s string) error {
		e.Cgroups = append(e.Cgroups, s)
		return nil
	})
	fs.IntVar(&e.Holder, "holder", 0, "process whose namespaces to enter")
	fs.StringVar(&e.Dir, "dir", "", "working directory")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return errors.New("no command")
	}
	return nodens.Exec(e, fs.Args())
}

func forward(ctx context.Context, fs *flag.FlagSet, args []string) error {
	listen := fs.String("listen", "127.0.0.1:0", "address on the host")
	portFile := fs.String("port-file", "", "file to write the port to")
	netns := fs.String("netns", "", "network namespace to dial in")
	target := fs.String("to", "", "literal IPv4 address and port")
	if err := fs.Parse(args); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", *listen)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	// Written under another name first: a reader that waits for it never reads half a number.
	if err := os.WriteFile(*portFile+".tmp", []byte(port), 0o600); err != nil {
		return err
	}
	if err := os.Rename(*portFile+".tmp", *portFile); err != nil {
		return err
	}
	return nodens.Forward(ctx, l, *netns, *target)
}
