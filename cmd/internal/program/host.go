package program

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/host"
)

// Host are the flags of a daemon that reads the machine it runs on; see [Host.Open].
type Host struct {
	host.Options
	// Machine is `host`, or a dump to replay.
	Machine string
}

// RegisterHost adds the flags to a set, with a daemon's own interval.
func (h *Host) RegisterHost(fs *flag.FlagSet, interval time.Duration) {
	fs.StringVar(&h.NodeName, "node-name", os.Getenv("NODE_NAME"),
		"name of this machine's Node; default $NODE_NAME, then the host name")
	fs.StringVar(&h.Machine, "machine", "host", "host, or a dump of `heddle inspect -o json` to replay")
	fs.DurationVar(&h.Interval, "interval", interval, "longest time between two scans of the machine")
	fs.StringVar(&h.SysfsRoot, "sysfs-root", "/sys", "where the host's sysfs is")
	fs.StringVar(&h.DevRoot, "dev-root", "/dev",
		"where the host's device nodes are; of a replayed machine one for each GPU, named by UUID")
	fs.StringVar(&h.ProcRoot, "proc-root", "/proc", "where the host's procfs is")
	fs.StringVar(&h.DriverRoot, "driver-root", "",
		"where the GPU driver is installed; empty: the dynamic loader finds its library")
}

// CheckHost validates the interval, and defaults the node's name.
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

// Released returns until when a Node's annotations ask to release its GPUs' driver, or
// zero. An invalid annotation asks for nothing: the device plugin reports it.
func Released(annotations map[string]string) time.Time {
	asked, _ := release.Parse(annotations[wellknown.GPURelease])
	return asked.Until
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

// Open returns the machine that the flags name. It validates a dump, and reads nothing of
// a host yet.
func (h *Host) Open(log *slog.Logger) (Machine, error) {
	if !h.IsReplay() {
		h.Logger = log
		return host.New(h.Options), nil
	}
	if _, err := host.LoadDump(h.Machine); err != nil {
		return nil, err
	}
	return host.NewReplay(h.Machine, h.NodeName, log), nil
}
