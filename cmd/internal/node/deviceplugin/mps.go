package deviceplugin

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/heddle-dev/heddle/sharing/enforce"
)

// keepMPS is heddle-mps.
func (o *options) keepMPS(ctx context.Context, log *slog.Logger) error {
	if err := o.openShm(); err != nil {
		return err
	}
	log.InfoContext(ctx, "started", "version", o.version, "node", o.NodeName, "state_dir", o.stateDir)
	k := &enforce.Keeper{StateDir: o.stateDir, Root: o.mpsRoot, Log: log}
	return k.Run(ctx)
}

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
