package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// clean removes the plugin's files from the host: CDI specs, sockets, the state directory
// and MPS's shared memory. It also removes the parent of the state directory if that is
// named heddle and empty.
func (o *options) clean(ctx context.Context) error {
	err := errors.Join(cdi.Clear(o.cdiDir), server.RemoveSockets(ctx, o.kubeletDir), removeAll(o.stateDir))
	if o.mpsShmDir != defaultShm {
		err = errors.Join(err, removeAll(o.mpsShmDir))
	}
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	above := filepath.Dir(o.stateDir)
	if filepath.Base(above) != "heddle" {
		return nil
	}
	removed := os.Remove(above)
	if removed == nil || errors.Is(removed, unix.ENOENT) || errors.Is(removed, unix.ENOTEMPTY) || busy(removed) {
		return nil
	}
	return fmt.Errorf("clean up: %w", removed)
}

// removeAll removes a directory and its content. A mount point stays, empty.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !busy(err) {
		return err
	}
	return nil
}

// busy reports whether a directory cannot be removed because it is a mount point, or in a
// container's read-only root.
func busy(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EROFS) }
