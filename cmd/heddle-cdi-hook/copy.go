package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// maxCopy bounds what is read into memory: as much as the plugin takes for a library.
const maxCopy = 64 << 20

// copyFile copies a file of an image to the node, for init containers with images
// without a program. A target of the same content is left as it is. Another one is
// replaced whole, and a process that has the old file mapped keeps that.
func copyFile(args []string) error {
	if len(args) != 2 {
		return errors.New("copy: want a file of the image, and where on the node it goes")
	}
	from, to := args[0], args[1]
	info, err := os.Stat(from) //nolint:gosec // The chart names it.
	switch {
	case err != nil:
		return fmt.Errorf("copy: in the image: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("copy: in the image: %s is not a file", from)
	case info.Size() == 0 || info.Size() > maxCopy:
		return fmt.Errorf("copy: in the image: %s has %d bytes; 1 to %d can be copied", from, info.Size(), maxCopy)
	}
	content, err := os.ReadFile(from) //nolint:gosec // The same.
	if err != nil {
		return fmt.Errorf("copy: in the image: %w", err)
	}
	if err := hostfile.Write(to, content, 0o755, hostfile.Durable); err != nil {
		return fmt.Errorf("copy: to the node: %w", err)
	}
	return nil
}
