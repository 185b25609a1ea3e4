package main

import (
	"errors"
	"flag"
	"time"

	"github.com/heddle-dev/heddle/cmd/internal/program"
)

type options struct {
	program.Flags
	program.Host
	outputFile, metricsAddress string
	oneshot, dryRun, cleanup   bool
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	o.RegisterHost(fs, time.Minute)
	fs.BoolVar(&o.oneshot, "oneshot", false, "scan once, write, and exit")
	fs.BoolVar(&o.dryRun, "dry-run", false, "print what would change and write nothing")
	fs.BoolVar(&o.cleanup, "cleanup", false,
		"remove every label and taint that this daemon owns; without --oneshot stay idle then, for a DaemonSet")
	fs.StringVar(&o.outputFile, "output-file", "",
		"write the labels to this node-feature-discovery feature file, not to the Node; no taints, no API server")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9101", "address of /metrics, /healthz and /readyz; empty: none")
}

// Check finds what the flag package cannot, and fills the node's name.
func (o *options) Check() error {
	if o.cleanup && o.dryRun {
		return errors.New("--cleanup and --dry-run exclude each other")
	}
	return o.CheckHost()
}
