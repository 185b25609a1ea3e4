// Command heddle-device-plugin serves the GPUs and HCAs of its node to the
// kubelet.
package main

import (
	"context"
	"fmt"
	"io"

	"github.com/heddle-dev/heddle/cmd/internal/program"
)

// version is set by the linker.
var version = "dev"

func main() { program.Main("heddle-device-plugin", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	if o.Version {
		_, err := fmt.Fprintln(stdout, "heddle-device-plugin", version)
		return err
	}
	log := o.Logger(stderr)
	program.SmallHeap()
	return serve(ctx, o, log)
}
