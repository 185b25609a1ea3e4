package program

import (
	"flag"
	"fmt"
	"os"
	"time"
)

// Host are the flags of a daemon that reads the machine it runs on.
type Host struct {
	// NodeName is what the cluster calls the machine.
	NodeName string
	// Machine is `host`, or a dump to replay.
	Machine string
	// SysfsRoot, DevRoot and ProcRoot are where /sys, /dev and /proc of the
	// host are; DriverRoot is where the NVIDIA driver is, empty to let the
	// dynamic loader find its library.
	SysfsRoot, DevRoot, ProcRoot, DriverRoot string
	// Interval is the longest time between two looks at the machine.
	Interval time.Duration
}

// RegisterHost adds them to a set, with a daemon's own interval.
func (h *Host) RegisterHost(fs *flag.FlagSet, interval time.Duration) {
	fs.StringVar(&h.NodeName, "node-name", os.Getenv("NODE_NAME"),
		"name of this machine's Node; default $NODE_NAME, then the host name")
	fs.StringVar(&h.Machine, "machine", "host", "host, or a dump of `heddle inspect -o json` to replay")
	fs.DurationVar(&h.Interval, "interval", interval, "longest time between two looks at the machine")
	fs.StringVar(&h.SysfsRoot, "sysfs-root", "/sys", "where the host's sysfs is")
	fs.StringVar(&h.DevRoot, "dev-root", "/dev", "where the host's device nodes are")
	fs.StringVar(&h.ProcRoot, "proc-root", "/proc", "where the host's procfs is")
	fs.StringVar(&h.DriverRoot, "driver-root", "",
		"where the NVIDIA driver is installed; empty: the dynamic loader finds its library")
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
