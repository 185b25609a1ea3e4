// Command heddle shows and explains what one node has, for people: the same
// code as the daemons run, without a cluster.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/card"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/doctor"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/inspect"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/topo"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/validate"
)

const usage = `heddle shows and explains what a GPU node has.

  heddle inspect               what the node has: a table, the dump, labels, resources, a matrix
  heddle doctor                what is wrong, why a resource is 0, and what to do about it
  heddle doctor taints         who could not come back to a node if a taint were set
  heddle card list NODE        how the GPUs of a node are handed out
  heddle card cordon|uncordon NODE UUID
                               take one GPU out for repair, or put it back
  heddle topo                  where the cluster's cables go: its groups of nodes, what is mis-cabled
  heddle topo gangs            pods that run together or not at all: where they run, or why not
  heddle config validate DIR   check a configuration
  heddle version               the version of this program
  heddle help [COMMAND]        this text, or a command's

inspect and doctor read this host, or with --machine FILE a dump of another:
heddle inspect -o json > FILE. Exit code 0: all is well; 1: something is wrong;
2: the command line is.`

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Exit(err, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return cli.Usagef("", "no command")
	}
	switch command, rest := args[0], args[1:]; command {
	case "inspect":
		return inspect.Run(ctx, rest, stdout, stderr)
	case "doctor":
		return doctor.Run(ctx, rest, stdout)
	case "card":
		return card.Run(ctx, rest, stdout)
	case "topo":
		return topo.Run(ctx, rest, stdout)
	case "config":
		return validate.Run(ctx, rest, stdout)
	case "version", "-version", "--version":
		if _, err := fmt.Fprintln(stdout, "heddle", version); err != nil {
			return fmt.Errorf("write version: %w", err)
		}
		return nil
	case "help", "-h", "-help", "--help":
		return help(ctx, rest, stdout, stderr)
	default:
		return cli.Usagef("", "%q is no command", command)
	}
}

// help prints a command's text by asking the command.
func help(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] != "help" {
		return run(ctx, append(args, "-h"), stdout, stderr)
	}
	if _, err := fmt.Fprintln(stdout, usage); err != nil {
		return fmt.Errorf("write help: %w", err)
	}
	return nil
}
