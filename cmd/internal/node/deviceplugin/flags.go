// Package deviceplugin is heddle-device-plugin: it serves the GPUs and HCAs of its node
// to the kubelet.
package deviceplugin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/agent"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// defaultShm is the usual directory of shared memory.
const defaultShm = "/dev/shm"

// The values of --imex-request.
const (
	imexAll        = "all"
	imexAnnotation = "annotation"
)

// Name is the name of the daemon.
const Name = "heddle-device-plugin"

// New returns the daemon of this version.
func New(version string) program.Daemon { return &options{version: version} }

type options struct {
	version string

	program.Flags
	program.Host
	kubeletDir, cdiDir, stateDir string
	cdiHook                      string
	mpsRoot, mpsShmDir           string
	strategy, metricsAddress     string
	imex, imexRequest            string
	gdrcopy, gds, mps            bool
	cleanup, authenticate        bool
	claimsDir, withdrawn         string
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	// The state of an InfiniBand port changes without an event.
	o.RegisterHost(fs, 10*time.Second)
	fs.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's --root-dir")
	fs.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "where CDI specs go; the container runtime must watch it")
	fs.StringVar(&o.cdiHook, "cdi-hook", "", "path of nvidia-cdi-hook on the host, or auto: where NVIDIA's toolkit "+
		"installs it; empty: CDI specs without hooks")
	registerMPS(fs, &o.stateDir, &o.mpsRoot, &o.mpsShmDir)
	fs.BoolVar(&o.mps, "mps", false,
		"enforcer mps is available: heddle-node mps with this --state-dir runs the MPS daemons")
	fs.StringVar(&o.strategy, "device-list-strategy", string(resource.CDI), "cdi, or envvar for runtimes without CDI")
	fs.BoolVar(&o.cleanup, "cleanup", false, "serve nothing; remove heddle's files in --cdi-dir and --kubelet-dir, "+
		"and the directories --state-dir and --mps-shm-dir, then stay idle, for a DaemonSet")
	fs.BoolVar(&o.gdrcopy, "gdrcopy", false, "give /dev/gdrdrv to containers with GPUs")
	fs.BoolVar(&o.gds, "gds", false, "give GPUDirect Storage's nodes to containers with GPUs")
	fs.StringVar(&o.imex, "imex-channels", "",
		"IMEX channels for containers with GPUs: a number, a comma list of numbers, or all; empty: none")
	fs.StringVar(&o.imexRequest, "imex-request", imexAll, "which containers with GPUs get them: all; or annotation, "+
		"those whose pods name them in annotation "+wellknown.IMEXChannels)
	fs.StringVar(&o.claimsDir, "claims-dir", "", "run the DRA driver, for nodes with mode: claims, with its socket in "+
		"this directory; the same path on the host and in the container: /var/lib/kubelet/plugins/"+claims.Driver)
	fs.StringVar(&o.withdrawn, "withdrawn-nodes", "", "namespace/name of the ConfigMap in which nodes that reject pod "+
		"after pod are entered; empty: none is withdrawn")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9102",
		"address of /metrics, /healthz, /readyz and /v1/bindings; empty: none")
	fs.BoolVar(&o.authenticate, "authenticate", true, "answer requests from outside of the node with names of pods, in "+
		"/v1/bindings and metrics, only if the API server allows the user of the bearer token to get that path; "+
		"false: answer every client of --metrics-address")
}

// Check implements [program.Daemon].
func (o *options) Check() error {
	byPod := o.imexRequest == imexAnnotation
	if o.claimsDir != "" && o.strategy == string(resource.Envvar) {
		return errors.New("--claims-dir needs --device-list-strategy=cdi: claims bring devices by CDI")
	}
	if namespace, name, _ := strings.Cut(o.withdrawn, "/"); o.withdrawn != "" && (namespace == "" || name == "") {
		return fmt.Errorf("--withdrawn-nodes: %q is not namespace/name", o.withdrawn)
	}
	switch _, err := gpu.ParseChannels(o.imex); {
	case o.strategy != string(resource.CDI) && o.strategy != string(resource.Envvar):
		return fmt.Errorf("--device-list-strategy: %q is neither cdi nor envvar", o.strategy)
	case err != nil && o.imex != "" && o.imex != gpu.AllChannels:
		return fmt.Errorf("--imex-channels: %w, or all", err)
	case !byPod && o.imexRequest != imexAll:
		return fmt.Errorf("--imex-request: %q is neither all nor annotation", o.imexRequest)
	case byPod && o.strategy == string(resource.Envvar):
		return errors.New("--imex-request: annotation needs --device-list-strategy=cdi: with envvar a container's " +
			"environment is made before its pod is known")
	case byPod && o.imex == "":
		return errors.New("--imex-request: annotation needs --imex-channels, which pods may ask for")
	}
	return o.CheckHost()
}

// factsEvery is how often the node is examined again: a library or a hook may be installed
// at any time.
const factsEvery = time.Minute

// limiter is an [enforce.Limiter] that examines the node.
type limiter struct {
	*enforce.Limiter
	host enforce.Host
	// driver locates the driver and its CDI hook.
	driver gpu.Options
	// unwritten is the state directory if our own hook could not be written there; else empty.
	unwritten string

	mu   sync.Mutex // guards what follows
	last seen
	at   time.Time
}

// seen is the input of the last choice.
type seen struct {
	enforce config.Enforce
	driver  string
}

// newLimiter returns a limiter.
func newLimiter(o *options, log *slog.Logger) *limiter {
	hook, err := installHook(o.stateDir)
	unwritten := ""
	switch {
	case err != nil && hook != "":
		unwritten = o.stateDir
		log.Warn("program not written, and tried again", "file", hook, "reason", err.Error())
	case err != nil:
		log.Warn("mounts and variables of pods with shares are not checked, and /etc/nccl.conf gets no hints",
			"reason", err.Error())
	}
	host := enforce.Host{
		Root: o.HostRoot, OwnHook: hook, SysRoot: o.SysfsRoot, MPS: o.mps, MPSRoot: o.mpsRoot,
		UsageError: agent.Unmeasured(o.IsReplay(), cgroup.Proc{Root: o.ProcRoot}),
	}
	return &limiter{
		Limiter: enforce.New(enforce.Options{StateDir: o.stateDir, ShmDir: o.mpsShmDir, Host: host, Log: log}),
		driver:  gpu.Options{HostRoot: o.HostRoot, DriverRoot: o.DriverRoot, Hook: o.cdiHook},
		host:    host, unwritten: unwritten,
	}
}

// hookEvery is the time between tries to write our own hook, as after a full disk.
const hookEvery = 5 * time.Second

// install writes our own hook if that has failed so far.
func (l *limiter) install(ctx context.Context) {
	for l.unwritten != "" {
		select {
		case <-ctx.Done():
			return
		case <-time.After(hookEvery):
		}
		if _, err := installHook(l.unwritten); err == nil {
			l.unwritten = ""
		}
	}
}

// mountsHook is the program, next to this one, that checks a container's mounts and variables.
const mountsHook = "heddle-cdi-hook"

// installHook copies the program into the state directory, where the node's runtime finds it
// under the same path. Each start writes it again, so it needs no fsync. It returns the path beside the error if the
// write fails, as on a full disk: then no container starts, rather than one without the checks.
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
	err = hostfile.Write(path, content, 0o755, hostfile.Quick)
	var fs unix.Statfs_t
	if err := unix.Statfs(stateDir, &fs); err != nil {
		return "", fmt.Errorf("file system of %s: %w", stateDir, err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("%s is mounted noexec", stateDir)
	}
	return path, err
}

// Configure implements [agent.Limiter].
func (l *limiter) Configure(m *machine.Machine, c *config.NodeConfig) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := seen{enforce: c.SGPU.Enforce, driver: m.Driver.Version}
	if now == l.last && time.Since(l.at) < factsEvery {
		_, err := l.Choice()
		return err
	}
	l.last, l.at = now, time.Now()
	l.host.Library, l.host.Hook = c.SGPU.Enforce.PreloadLibrary, l.driver.Hook
	l.host.DriverRoot = nvml.Root(l.driver)
	if l.driver.Hook == gpu.AutoHook {
		l.host.Hook = nvml.FindHook(l.host.Root)
	}
	facts := l.host.Read(m, func(g *machine.GPU) bool { return c.Shares(g) || c.Claimable(g) })
	return l.Limiter.Configure(&now.enforce, &facts)
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
