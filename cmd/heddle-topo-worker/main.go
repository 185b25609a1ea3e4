// Command heddle-topo-worker finds out where the cables of its node end and
// publishes that as the node's NodeTopology.
package main

import (
	"context"
	"io"

	"github.com/heddle-dev/heddle/cmd/internal/node/topoworker"
	"github.com/heddle-dev/heddle/cmd/internal/program"
)

// version is set by the linker.
var version = "dev"

func main() { program.Main(topoworker.Name, run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, topoworker.Name, version, topoworker.New(version), args, stdout, stderr)
}
