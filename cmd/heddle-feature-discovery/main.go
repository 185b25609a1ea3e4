// Command heddle-feature-discovery labels and taints its own Kubernetes Node by
// what the machine has and what the configuration decides.
package main

import (
	"context"
	"io"

	"github.com/heddle-dev/heddle/cmd/internal/node/featurediscovery"
	"github.com/heddle-dev/heddle/cmd/internal/program"
)

// version is set by the linker.
var version = "dev"

func main() { program.Main(featurediscovery.Name, run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, featurediscovery.Name, version, featurediscovery.New(version), args, stdout, stderr)
}
