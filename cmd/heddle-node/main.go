// Command heddle-node runs the daemons of a node in one process: heddle-device-plugin,
// heddle-feature-discovery and heddle-topo-worker, or some of them.
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
	return program.Together(ctx, name, version, []program.Part{
		{Name: "device-plugin", Daemon: deviceplugin.New(version)},
		{Name: "feature-discovery", Daemon: featurediscovery.New(version)},
		{Name: "topo-worker", Daemon: topoworker.New(version)},
	}, args, stdout, stderr)
}
