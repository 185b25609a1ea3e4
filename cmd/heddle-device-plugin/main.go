// Command heddle-device-plugin serves the GPUs and HCAs of its node to the
// kubelet.
package main

import (
	"context"
	"io"

	"github.com/heddle-dev/heddle/cmd/internal/node/deviceplugin"
	"github.com/heddle-dev/heddle/cmd/internal/program"
)

// version is set by the linker.
var version = "dev"

func main() { program.Main(deviceplugin.Name, run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, deviceplugin.Name, version, deviceplugin.New(version), args, stdout, stderr)
}
