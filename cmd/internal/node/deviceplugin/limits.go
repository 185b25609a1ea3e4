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
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// factsEvery is how often the node is examined again: a library or a hook may be installed
// at any time.
const factsEvery = time.Minute

// limiter is an [enforce.Limiter] that examines the node.
type limiter struct {
	*enforce.Limiter
	host enforce.Host
	// cdiHook is the value of --cdi-hook.
	cdiHook string

	mu   sync.Mutex // guards what follows
	last seen
	at   time.Time
}

// seen is the input of the last choice.
type seen struct {
	enforce config.Enforce
	driver  string
	facts   enforce.Facts
}

// newLimiter returns a limiter.
func newLimiter(o *options, log *slog.Logger) *limiter {
	options := enforce.Options{
		StateDir: o.stateDir, HostRoot: o.hostRoot, ShmDir: o.mpsShmDir,
		HookDriverRoot: o.hostDriverRoot, Log: log,
	}
	hook, err := installHook(o.stateDir)
	if err != nil {
		log.Warn("mounts and variables of pods with shares are not checked, and /etc/nccl.conf gets no hints",
			"reason", err.Error())
	}
	options.MountsHook, options.SysRoot = hook, o.SysfsRoot
	return &limiter{
		Limiter: enforce.New(options),
		cdiHook: o.cdiHook,
		host: enforce.Host{
			Root: o.hostRoot, OwnHook: hook, SysRoot: o.SysfsRoot, ProcRoot: o.ProcRoot,
			MPS: o.mps, MPSRoot: o.mpsRoot, Replayed: o.IsReplay(),
		},
	}
}

// mountsHook is the program, next to this one, that checks a container's mounts and variables.
const mountsHook = "heddle-cdi-hook"

// installHook copies the program into the state directory, where the node's runtime finds it
// under the same path. Each start writes it again, so it needs no fsync.
func installHook(stateDir string) (path string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(filepath.Join(filepath.Dir(self), mountsHook))
	if err != nil {
		return "", err
	}
	path = filepath.Join(stateDir, mountsHook)
	if err := hostfile.Write(path, content, 0o755, hostfile.Quick); err != nil {
		return "", err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(stateDir, &fs); err != nil {
		return "", fmt.Errorf("file system of %s: %w", stateDir, err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("%s is mounted noexec", stateDir)
	}
	return path, nil
}

// Configure implements [agent.Limiter].
func (l *limiter) Configure(m *machine.Machine, c *config.NodeConfig) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := seen{enforce: c.SGPU.Enforce, driver: m.Driver.Version}
	same := now.enforce == l.last.enforce && now.driver == l.last.driver
	if !same || time.Since(l.at) >= factsEvery {
		l.host.Library, l.host.Hook = c.SGPU.Enforce.PreloadLibrary, l.cdiHook
		if l.cdiHook == gpu.AutoHook {
			l.host.Hook = nvml.FindHook(l.host.Root)
		}
		now.facts = l.host.Read(m, c.Shares)
		l.at = time.Now()
		if !reflect.DeepEqual(now, l.last) {
			l.last = now
			return l.Limiter.Configure(&now.enforce, &now.facts)
		}
	}
	_, err := l.Choice()
	return err
}

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
