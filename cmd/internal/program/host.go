package program

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/replay"
)

// Host are the flags of a daemon that reads the machine it runs on; see Open.
type Host struct {
	// NodeName is what the cluster calls the machine.
	NodeName string
	// Machine is `host`, or a dump to replay.
	Machine string
	// SysfsRoot, DevRoot and ProcRoot are where /sys, /dev and /proc of the
	// host are; DriverRoot is where the GPU driver is, empty to let the
	// dynamic loader find its library.
	SysfsRoot, DevRoot, ProcRoot, DriverRoot string
	// Interval is the longest time between two scans of the machine.
	Interval time.Duration
}

// RegisterHost adds them to a set, with a daemon's own interval.
func (h *Host) RegisterHost(fs *flag.FlagSet, interval time.Duration) {
	fs.StringVar(&h.NodeName, "node-name", os.Getenv("NODE_NAME"),
		"name of this machine's Node; default $NODE_NAME, then the host name")
	fs.StringVar(&h.Machine, "machine", "host", "host, or a dump of `heddle inspect -o json` to replay")
	fs.DurationVar(&h.Interval, "interval", interval, "longest time between two scans of the machine")
	fs.StringVar(&h.SysfsRoot, "sysfs-root", "/sys", "where the host's sysfs is")
	fs.StringVar(&h.DevRoot, "dev-root", "/dev", "where the host's device nodes are")
	fs.StringVar(&h.ProcRoot, "proc-root", "/proc", "where the host's procfs is")
	fs.StringVar(&h.DriverRoot, "driver-root", "",
		"where the GPU driver is installed; empty: the dynamic loader finds its library")
}

// CheckHost finds what the flag package cannot, and fills the node's name.
func (h *Host) CheckHost() error {
	if h.Interval < time.Second {
		return fmt.Errorf("--interval: %s is less than 1s", h.Interval)
	}
	if h.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name is not set, and the host has no name: %w", err)
		}
		h.NodeName = name
	}
	return nil
}

// IsReplay reports whether the machine comes from a dump.
func (h *Host) IsReplay() bool { return h.Machine != "host" }

// Machine is a machine and its changes: a host or a replay.
type Machine interface {
	Run(ctx context.Context) error
	// Scan reads now; it returns nil if nothing could be read.
	Scan(ctx context.Context) *machine.Machine
	// Machine is the newest machine, nil before the first.
	Machine() *machine.Machine
	Changed() <-chan struct{}
}

// Open finds the machine that the flags name; nothing of a host is read yet, a
// dump must be a good one. A host's GPUs are read from gpus, nil for all that
// heddle supports, with their driver in DriverRoot.
func (h *Host) Open(gpus gpu.Sources, log *slog.Logger) (Machine, error) {
	if !h.IsReplay() {
		return host.New(host.Options{
			SysfsRoot: h.SysfsRoot, DevRoot: h.DevRoot, ProcRoot: h.ProcRoot, DriverRoot: h.DriverRoot, GPUs: gpus,
			NodeName: h.NodeName, Interval: h.Interval, Logger: log,
		}), nil
	}
	if _, err := replay.Load(h.Machine); err != nil {
		return nil, err
	}
	return replay.New(h.Machine, h.NodeName, log), nil
}
