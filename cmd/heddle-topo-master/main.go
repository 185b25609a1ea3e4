// Command heddle-topo-master groups the cluster's nodes by how they are cabled
// and serves the map: GET /node_group and more on port 9001.
package main

import (
	"context"
	"io"

	"github.com/heddle-dev/heddle/cmd/internal/program"
)

// version is set by the linker.
var version = "dev"

func main() { program.Main("heddle-topo-master", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, "heddle-topo-master", version, &options{}, args, stdout, stderr)
}
