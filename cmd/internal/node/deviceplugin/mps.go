package deviceplugin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// checkTimeout is less than that of the probes in the chart.
const checkTimeout = 5 * time.Second

// NewMPS returns heddle-mps of this version: it runs MPS daemons, which go on while the
// device plugin is updated.
func NewMPS(version string) program.Daemon { return &keeper{version: version} }

type keeper struct {
	version string

	program.Flags
	stateDir, root, shmDir string
	check                  bool
}

// Register implements [program.Daemon].
func (k *keeper) Register(fs *flag.FlagSet) {
	registerMPS(fs, &k.stateDir, &k.root, &k.shmDir)
	fs.BoolVar(&k.check, "check", false, "fail unless the process that runs the MPS daemons answers, for its probes")
}

// registerMPS adds the flags that the device plugin and heddle-mps share.
func registerMPS(fs *flag.FlagSet, stateDir, root, shmDir *string) {
	fs.StringVar(stateDir, "state-dir", "/var/lib/heddle/device-plugin",
		"what outlives a restart; the same path on the host and in the container")
	fs.StringVar(root, "mps-root", "",
		"root of nvidia-cuda-mps-control, which has --state-dir at the same path; empty: our own")
	fs.StringVar(shmDir, "mps-shm-dir", defaultShm,
		"directory of the host, in memory, that MPS has as /dev/shm, and so have containers with MPS")
}

// Check implements [program.Daemon].
func (k *keeper) Check() error { return nil }

// Run implements [program.Daemon].
func (k *keeper) Run(ctx context.Context, log *slog.Logger, _ io.Writer) error {
	socket := enforce.KeeperSocket(k.stateDir)
	if k.check {
		return enforce.CheckKeeper(ctx, socket, checkTimeout)
	}
	if err := openShm(k.root, k.shmDir); err != nil {
		return err
	}
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
	log.InfoContext(ctx, "started", "version", k.version, "socket", socket)
	daemons := &enforce.Keeper{StateDir: k.stateDir, Root: k.root, Log: log}
	return daemons.Run(ctx, listener)
}

// openShm makes the memory that MPS's daemons and clients share writable for clients of any
// user, as /dev/shm is.
func openShm(root, dir string) error {
	if dir == defaultShm {
		return nil
	}
	if err := os.Chmod(filepath.Join(root, defaultShm), 0o777|fs.ModeSticky); err != nil {
		return fmt.Errorf("shared memory of MPS: %w", err)
	}
	return nil
}
