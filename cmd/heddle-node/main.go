// Command heddle-node is the daemons of a node in one executable; each runs in a process,
// and a DaemonSet, of its own.
package main

import (
	"context"
	"io"

	"github.com/heddle-dev/heddle/cmd/internal/node/deviceplugin"
	"github.com/heddle-dev/heddle/cmd/internal/node/featurediscovery"
	"github.com/heddle-dev/heddle/cmd/internal/node/topoworker"
	"github.com/heddle-dev/heddle/cmd/internal/program"
)

const name = "heddle-node"

// version is set by the linker.
var version = "dev"

func main() { program.Main(name, run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.RunOne(ctx, name, version, map[string]program.Daemon{
		"device-plugin": deviceplugin.New(version), "mps": deviceplugin.NewMPS(version),
		"feature-discovery": featurediscovery.New(version), "topo-worker": topoworker.New(version),
	}, args, stdout, stderr)
}
