// Command heddle-feature-discovery labels and taints its own Kubernetes Node
// by what the machine has and what the configuration decides.
package main

import (
	"context"
	"io"

	"github.com/heddle-dev/heddle/cmd/internal/program"
)

// version is set by the linker.
var version = "dev"

func main() { program.Main("heddle-feature-discovery", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, "heddle-feature-discovery", version, &options{}, args, stdout, stderr)
}
