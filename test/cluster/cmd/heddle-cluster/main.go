//go:build linux

// Command heddle-cluster runs a one-node Kubernetes for tests and demos.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/cluster"
)

const usage = `usage: heddle-cluster COMMAND [--name NAME] ...

  up [--kwok] [--replace] [--port N]   build what is missing and start a cluster
  down                                 end it and remove what it left
  status                               what runs
  logs COMPONENT                       a component's log
  load IMAGE.tar                       import a docker-archive into the node
  kubectl ARGS...                      kubectl against the cluster
  node COMMAND ARGS...                 a command on the node
  build                                only build
  pack DIR                             build, and copy what was built, for HEDDLE_PREBUILT=DIR on a machine without Go
  preflight                            list what this machine lacks
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "heddle-cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		_, _ = io.WriteString(stderr, usage)
		return errors.New("no command")
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	fs.SetOutput(stderr)
	o := cluster.Options{Log: stderr}
	fs.StringVar(&o.Name, "name", "", "cluster name (default heddle)")
	if args[0] == "up" {
		fs.BoolVar(&o.Kwok, "kwok", false, "run the controller of simulated nodes")
		fs.BoolVar(&o.Replace, "replace", false, "bring a running cluster of the same name down first")
		fs.IntVar(&o.Port, "port", 0, "API server port on 127.0.0.1 (default a free one)")
	}
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "up":
		return up(ctx, o, stdout)
	case "build":
		_, err := cluster.Builder{Log: stderr}.Build(ctx)
		return err
	case "pack":
		return pack(ctx, fs.Args(), stderr)
	case "preflight":
		return preflight(stdout)
	case "help":
		_, err := io.WriteString(stdout, usage)
		return err
	}
	c, err := cluster.Open(o)
	if err != nil {
		if args[0] == "down" && errors.Is(err, cluster.ErrNotUp) {
			return nil
		}
		return err
	}
	return on(ctx, c, args[0], fs.Args(), stdout, stderr)
}

// on runs the commands that need a cluster.
func on(ctx context.Context, c *cluster.Cluster, command string, args []string, stdout, stderr io.Writer) error {
	switch command {
	case "down":
		return c.Down(ctx)
	case "status":
		return status(ctx, c, stdout)
	case "kubectl":
		return attach(c.KubectlCommand(ctx, args...), stdout, stderr)
	}
	if len(args) == 0 {
		return fmt.Errorf("%s: want an argument", command)
	}
	switch command {
	case "logs":
		log, err := c.Logs(args[0])
		if err != nil {
			return err
		}
		_, err = io.Copy(stdout, log)
		return errors.Join(err, log.Close())
	case "load":
		return c.LoadImage(ctx, args[0])
	case "node":
		cmd, err := c.NodeCommand(ctx, args[0], args[1:]...)
		if err != nil {
			return err
		}
		return attach(cmd, stdout, stderr)
	}
	return fmt.Errorf("unknown command %q", command)
}

// pack writes what another machine needs.
func pack(ctx context.Context, args []string, stderr io.Writer) error {
	if len(args) != 1 {
		return errors.New("pack: want a directory")
	}
	b, err := cluster.Builder{Log: stderr}.Build(ctx)
	if err != nil {
		return err
	}
	return cluster.Pack(b, args[0])
}

func up(ctx context.Context, o cluster.Options, stdout io.Writer) error {
	if err := preflight(stdout); err != nil {
		return err
	}
	c, err := cluster.Up(ctx, o)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "export KUBECONFIG=%s\n", c.Kubeconfig())
	return err
}

func status(ctx context.Context, c *cluster.Cluster, stdout io.Writer) error {
	s := c.Status(ctx)
	for _, one := range s.Components {
		_, _ = fmt.Fprintf(stdout, "%-24s pid %-8d %s\n", one.Name, one.PID, one.LogFile)
	}
	_, err := fmt.Fprintf(stdout, "API ready: %t, node %s ready: %t\nKUBECONFIG=%s\n",
		s.APIReady, c.Node(), s.NodeReady, s.Kubeconfig)
	return err
}

func preflight(stdout io.Writer) error {
	missing := cluster.Preflight("")
	for _, m := range missing {
		_, _ = fmt.Fprintf(stdout, "missing: %s\n    %s\n", m.What, m.Remedy)
	}
	if len(missing) > 0 {
		return fmt.Errorf("this machine lacks %d things", len(missing))
	}
	return nil
}

func attach(cmd *exec.Cmd, stdout, stderr io.Writer) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	return cmd.Run()
}
