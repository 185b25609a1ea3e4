package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/gpu"
	"github.com/heddle-dev/heddle/deviceplugin/plugin"
)

// errUsage means that the flags were wrong; the reason is already printed.
var errUsage = errors.New("usage")

// defaultShm is where programs share memory.
const defaultShm = "/dev/shm"

type options struct {
	nodeName, machine, config, kubeconfig string
	kubeletDir, cdiDir, stateDir          string
	sysfsRoot, devRoot, procRoot          string
	driverRoot, hostDriverRoot            string
	cdiHook, replayDevices                string
	hostRoot, mpsRoot, mpsShmDir          string
	strategy, metricsAddress, logFormat   string
	logLevel                              slog.Level
	interval                              time.Duration
	takeover, gdrcopy, gds, version       bool
}

func parseFlags(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("heddle-device-plugin", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"),
		"name of this machine's Node; default $NODE_NAME, then the host name")
	fs.StringVar(&o.machine, "machine", "host", "host, or a dump of `heddle inspect -o json` to replay")
	fs.StringVar(&o.replayDevices, "replay-devices", "",
		"directory with a character device for every GPU of a replayed machine, named by UUID")
	fs.StringVar(&o.config, "config", "", "directory with the ConfigMap's keys as files; empty: built-in defaults")
	fs.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig; empty: the pod's service account")
	fs.StringVar(&o.kubeletDir, "kubelet-dir", plugin.DefaultKubeletDir, "the kubelet's --root-dir")
	fs.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "where CDI specs go; the container runtime must watch it")
	fs.StringVar(&o.stateDir, "state-dir", "/var/lib/heddle/device-plugin",
		"what outlives a restart; the same path on the host and in the container")
	fs.StringVar(&o.sysfsRoot, "sysfs-root", "/sys", "where the host's sysfs is")
	fs.StringVar(&o.devRoot, "dev-root", "/dev", "where the host's device nodes are, here and for the container runtime")
	fs.StringVar(&o.procRoot, "proc-root", "/proc", "where the host's procfs is")
	fs.StringVar(&o.driverRoot, "driver-root", "",
		"where the NVIDIA driver is installed; empty: the dynamic loader finds its library")
	fs.StringVar(&o.hostDriverRoot, "host-driver-root", "",
		"where the container runtime sees what --driver-root is here; empty: at the same path")
	fs.StringVar(&o.cdiHook, "cdi-hook", "", "path of nvidia-cdi-hook on the host; empty: CDI specs without hooks")
	fs.StringVar(&o.hostRoot, "host-root", "",
		"where the host's --cdi-hook and the library of sgpu.enforce.preload are; empty: at their own paths")
	fs.StringVar(&o.mpsRoot, "mps-root", "",
		"root of nvidia-cuda-mps-control, which has --state-dir at the same path; empty: our own")
	fs.StringVar(&o.mpsShmDir, "mps-shm-dir", defaultShm,
		"directory of the host, in memory, that MPS has as /dev/shm, and so have containers with MPS")
	fs.StringVar(&o.strategy, "device-list-strategy", string(gpu.CDI), "cdi, or envvar for runtimes without CDI")
	fs.BoolVar(&o.gdrcopy, "gdrcopy", false, "give /dev/gdrdrv to containers with GPUs")
	fs.BoolVar(&o.gds, "gds", false, "give GPUDirect Storage's nodes to containers with GPUs")
	fs.BoolVar(&o.takeover, "takeover", false, "serve a resource although another device plugin does")
	fs.DurationVar(&o.interval, "interval", 10*time.Second,
		"longest time between two looks at the machine; the state of an InfiniBand port changes without an event")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9102",
		"address of /metrics, /healthz, /readyz and /v1/bindings; empty: none")
	fs.StringVar(&o.logFormat, "log-format", "text", "text or json")
	fs.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, errUsage
	}
	if err := o.check(fs); err != nil {
		fmt.Fprintln(stderr, "heddle-device-plugin:", err)
		return nil, errUsage
	}
	return o, nil
}

// check finds what the flag package cannot, and fills the node's name.
func (o *options) check(fs *flag.FlagSet) error {
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.logFormat != "text" && o.logFormat != "json":
		return fmt.Errorf("--log-format: %q is neither text nor json", o.logFormat)
	case o.strategy != string(gpu.CDI) && o.strategy != string(gpu.Envvar):
		return fmt.Errorf("--device-list-strategy: %q is neither cdi nor envvar", o.strategy)
	case o.interval < time.Second:
		return fmt.Errorf("--interval: %s is less than 1s", o.interval)
	case o.machine == "host" && o.replayDevices != "":
		return errors.New("--replay-devices is for a replayed machine: --machine FILE")
	}
	if o.nodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name is not set, and the host has no name: %w", err)
		}
		o.nodeName = host
	}
	return nil
}

func (o *options) handler(w io.Writer) slog.Handler {
	h := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat == "json" {
		return slog.NewJSONHandler(w, h)
	}
	return slog.NewTextHandler(w, h)
}
