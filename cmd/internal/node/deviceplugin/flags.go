// Package deviceplugin is heddle-device-plugin: it serves the GPUs and HCAs of its node
// to the kubelet.
package deviceplugin

import (
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	devices "github.com/heddle-dev/heddle/discovery/gpu"
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
	hostDriverRoot               string
	cdiHook                      string
	hostRoot, mpsRoot, mpsShmDir string
	strategy, metricsAddress     string
	imex, imexRequest            string
	gdrcopy, gds, mps            bool
	cleanup, authenticate        bool
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	// The state of an InfiniBand port changes without an event.
	o.RegisterHost(fs, 10*time.Second)
	fs.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's --root-dir")
	fs.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "where CDI specs go; the container runtime must watch it")
	fs.StringVar(&o.hostDriverRoot, "host-driver-root", "",
		"where the container runtime sees what --driver-root is here; empty: at the same path")
	fs.StringVar(&o.cdiHook, "cdi-hook", "", "path of nvidia-cdi-hook on the host, or auto: where NVIDIA's toolkit "+
		"installs it; empty: CDI specs without hooks")
	fs.StringVar(&o.hostRoot, "host-root", "",
		"where the host's --cdi-hook and the library of sgpu.enforce.preloadLibrary are; empty: at their own paths")
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
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9102",
		"address of /metrics, /healthz, /readyz and /v1/bindings; empty: none")
	fs.BoolVar(&o.authenticate, "authenticate", true, "answer requests from outside of the node with names of pods, in "+
		"/v1/bindings and metrics, only if the API server allows the user of the bearer token to get that path; "+
		"false: answer every client of --metrics-address")
}

// Check implements [program.Daemon].
func (o *options) Check() error {
	if o.strategy != string(resource.CDI) && o.strategy != string(resource.Envvar) {
		return fmt.Errorf("--device-list-strategy: %q is neither cdi nor envvar", o.strategy)
	}
	if err := checkChannels(o.imex); err != nil {
		return fmt.Errorf("--imex-channels: %w", err)
	}
	if err := o.checkRequest(); err != nil {
		return fmt.Errorf("--imex-request: %w", err)
	}
	return o.CheckHost()
}

// checkChannels validates the IMEX channels of [devices.Features].
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
