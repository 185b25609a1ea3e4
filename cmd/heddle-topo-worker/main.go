// Command heddle-topo-worker finds out where the cables of its node end and
// publishes that as the node's NodeTopology.
package main

import (
	"context"
	"fmt"
	"io"

	"github.com/heddle-dev/heddle/cmd/internal/program"
)

// version is set by the linker.
var version = "dev"

func main() { program.Main("heddle-topo-worker", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	if o.Version {
		_, err := fmt.Fprintln(stdout, "heddle-topo-worker", version)
		return err
	}
	log := o.Logger(stderr)
	program.SmallHeap()
	if o.oneshot {
		return once(ctx, o, log, stdout)
	}
	return daemon(ctx, o, log)
}
