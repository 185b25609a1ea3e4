package deviceplugin

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// NewMPS returns heddle-mps of this version: it runs MPS daemons, which outlive updates of the
// device plugin.
func NewMPS(version string) program.Daemon { return &keeper{version: version} }

type keeper struct {
	version string

	program.Flags
	stateDir, root, shmDir string
}

// Register implements [program.Daemon].
func (k *keeper) Register(fs *flag.FlagSet) { registerMPS(fs, &k.stateDir, &k.root, &k.shmDir) }

// registerMPS adds the flags that the device plugin and heddle-mps share.
func registerMPS(fs *flag.FlagSet, stateDir, root, shmDir *string) {
	fs.StringVar(stateDir, "state-dir", "/var/lib/heddle/device-plugin",
		"state that survives a restart; the same path on the host and in the container")
	fs.StringVar(root, "mps-root", "",
		"root of nvidia-cuda-mps-control, which has --state-dir at the same path; empty: our own")
	fs.StringVar(shmDir, "mps-shm-dir", defaultShm,
		"directory of the host, in memory, that is /dev/shm for MPS and its containers")
}

// Check implements [program.Daemon].
func (k *keeper) Check() error { return nil }

// Run implements [program.Daemon].
func (k *keeper) Run(ctx context.Context, log *slog.Logger, _ io.Writer) error {
	if err := openShm(k.root, k.shmDir); err != nil {
		return err
	}
	log.InfoContext(ctx, "started", "version", k.version, "state_dir", k.stateDir)
	daemons := &enforce.Keeper{StateDir: k.stateDir, Root: k.root, Log: log}
	return daemons.Run(ctx)
}

// openShm makes the shared memory of MPS's daemons and clients writable for clients of any user,
// as /dev/shm is.
func openShm(root, dir string) error {
	if dir == defaultShm {
		return nil
	}
	if err := os.Chmod(filepath.Join(root, defaultShm), 0o777|fs.ModeSticky); err != nil {
		return fmt.Errorf("shared memory of MPS: %w", err)
	}
	return nil
}
