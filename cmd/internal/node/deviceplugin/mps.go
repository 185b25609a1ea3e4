package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/heddle-dev/heddle/sharing/enforce"
)

// checkTimeout is less than that of the probes in the chart.
const checkTimeout = 5 * time.Second

// openShm opens the memory that MPS's daemons and clients share: clients of any user make
// files there, as in any /dev/shm.
func (o *options) openShm() error {
	if o.mpsShmDir == defaultShm {
		return nil
	}
	if err := os.Chmod(filepath.Join(o.mpsRoot, defaultShm), 0o777|fs.ModeSticky); err != nil {
		return fmt.Errorf("shared memory of MPS: %w", err)
	}
	return nil
}

// keepMPS is heddle-mps.
func (o *options) keepMPS(ctx context.Context, log *slog.Logger) error {
	if err := o.openShm(); err != nil {
		return err
	}
	socket := enforce.KeeperSocket(o.stateDir)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil { //nolint:gosec // The plugin makes it so too.
		return fmt.Errorf("directory of MPS: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the last socket: %w", err)
	}
	var of net.ListenConfig
	listener, err := of.Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("serve the plugin: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(fmt.Errorf("socket: %w", err), listener.Close())
	}
	log.InfoContext(ctx, "started", "version", o.version, "node", o.NodeName, "socket", socket)
	k := &enforce.Keeper{StateDir: o.stateDir, Root: o.mpsRoot, Log: log}
	return k.Run(ctx, listener)
}
