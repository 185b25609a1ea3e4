// Package deviceplugin is heddle-device-plugin: it serves the GPUs and HCAs of its node
// to the kubelet.
package deviceplugin

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	devices "github.com/heddle-dev/heddle/discovery/gpu"
)

// defaultShm is where programs share memory.
const defaultShm = "/dev/shm"

// The values of --mps-keeper.
const (
	keeperNone  = "none"
	keeperUse   = "use"
	keeperServe = "serve"
)

// The values of --imex-request.
const (
	imexAll        = "all"
	imexAnnotation = "annotation"
)

// Name is the program's.
const Name = "heddle-device-plugin"

// New is a daemon of this version.
func New(version string) program.Daemon { return &options{version: version} }

type options struct {
	version string

	program.Flags
	program.Host
	kubeletDir, cdiDir, stateDir string
	hostDriverRoot               string
	cdiHook, replayDevices       string
	hostRoot, mpsRoot, mpsShmDir string
	strategy, metricsAddress     string
	imex, imexRequest            string
	takeover, gdrcopy, gds       bool
	cleanup, authenticate        bool
	mpsKeeper                    string
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	// The state of an InfiniBand port changes without an event.
	o.RegisterHost(fs, 10*time.Second)
	fs.StringVar(&o.replayDevices, "replay-devices", "",
		"directory with a character device for every GPU of a replayed machine, named by UUID")
	fs.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's --root-dir")
	fs.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "where CDI specs go; the container runtime must watch it")
	fs.StringVar(&o.stateDir, "state-dir", "/var/lib/heddle/device-plugin",
		"what outlives a restart; the same path on the host and in the container")
	fs.StringVar(&o.hostDriverRoot, "host-driver-root", "",
		"where the container runtime sees what --driver-root is here; empty: at the same path")
	fs.StringVar(&o.cdiHook, "cdi-hook", "", "path of nvidia-cdi-hook on the host, or auto: where NVIDIA's toolkit "+
		"installs it; empty: CDI specs without hooks")
	fs.StringVar(&o.hostRoot, "host-root", "",
		"where the host's --cdi-hook and the library of sgpu.enforce.preload are; empty: at their own paths")
	fs.StringVar(&o.mpsRoot, "mps-root", "",
		"root of nvidia-cuda-mps-control, which has --state-dir at the same path; empty: our own")
	fs.StringVar(&o.mpsShmDir, "mps-shm-dir", defaultShm,
		"directory of the host, in memory, that MPS has as /dev/shm, and so have containers with MPS")
	fs.StringVar(&o.mpsKeeper, "mps-keeper", keeperNone, "none: enforcer mps is not available; use: another process "+
		"with this --state-dir runs the MPS daemons; serve: run them, and serve nothing else")
	fs.StringVar(&o.strategy, "device-list-strategy", string(resource.CDI), "cdi, or envvar for runtimes without CDI")
	fs.BoolVar(&o.cleanup, "cleanup", false, "serve nothing; remove what is heddle's in --cdi-dir and --kubelet-dir, "+
		"--state-dir and --mps-shm-dir themselves, and stay idle then, for a DaemonSet")
	fs.BoolVar(&o.gdrcopy, "gdrcopy", false, "give /dev/gdrdrv to containers with GPUs")
	fs.BoolVar(&o.gds, "gds", false, "give GPUDirect Storage's nodes to containers with GPUs")
	fs.StringVar(&o.imex, "imex-channels", "",
		"IMEX channels for containers with GPUs: a number, a comma list of numbers, or all; empty: none")
	fs.StringVar(&o.imexRequest, "imex-request", imexAll, "which containers with GPUs get them: all; or annotation, "+
		"those whose pods name them in annotation "+wellknown.IMEXChannels)
	fs.BoolVar(&o.takeover, "takeover", false, "serve a resource although another device plugin does")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9102",
		"address of /metrics, /healthz, /readyz and /v1/bindings; empty: none")
	fs.BoolVar(&o.authenticate, "authenticate", true, "answer who asks from outside of the node with names of pods, in "+
		"/v1/bindings and metrics, only if the API server lets the user of the bearer token get that path; "+
		"false: answer everyone who reaches --metrics-address")
}

// Reads overrides [program.Host]: one that cleans the host, or keeps MPS daemons, reads
// no machine, and other daemons of the process must not wait for it.
func (o *options) Reads() *program.Host {
	if o.cleanup || o.isKeeper() {
		return nil
	}
	return &o.Host
}

// isKeeper reports whether the process is heddle-mps.
func (o *options) isKeeper() bool { return o.mpsKeeper == keeperServe }

// Check finds what the flag package cannot, and fills the node's name.
func (o *options) Check() error {
	switch {
	case o.strategy != string(resource.CDI) && o.strategy != string(resource.Envvar):
		return fmt.Errorf("--device-list-strategy: %q is neither cdi nor envvar", o.strategy)
	case !o.IsReplay() && o.replayDevices != "":
		return errors.New("--replay-devices is for a replayed machine: --machine FILE")
	}
	if !slices.Contains([]string{keeperNone, keeperUse, keeperServe}, o.mpsKeeper) {
		return fmt.Errorf("--mps-keeper: unsupported value %q, supported values are none, use and serve", o.mpsKeeper)
	}
	if err := checkChannels(o.imex); err != nil {
		return fmt.Errorf("--imex-channels: %w", err)
	}
	if err := o.checkRequest(); err != nil {
		return fmt.Errorf("--imex-request: %w", err)
	}
	return o.CheckHost()
}

// checkChannels accepts what [devices.Features] has as IMEX channels.
func checkChannels(list string) error {
	if list == "" || list == devices.AllChannels {
		return nil
	}
	if _, err := devices.ParseChannels(list); err != nil {
		return fmt.Errorf("%w, or all", err)
	}
	return nil
}

func (o *options) checkRequest() error {
	switch {
	case o.imexRequest == imexAll:
		return nil
	case o.imexRequest != imexAnnotation:
		return fmt.Errorf("%q is neither all nor annotation", o.imexRequest)
	case o.strategy == string(resource.Envvar):
		return errors.New("annotation needs --device-list-strategy=cdi: with envvar a container's environment is made " +
			"before its pod is known")
	case o.imex == "":
		return errors.New("annotation needs --imex-channels, which pods may ask for")
	}
	return nil
}
