package main

import (
	"errors"
	"flag"
	"io"
	"time"

	"github.com/heddle-dev/heddle/cmd/internal/node"
	"github.com/heddle-dev/heddle/cmd/internal/program"
)

type options struct {
	program.Flags
	node.Host
	outputFile, metricsAddress string
	oneshot, dryRun, cleanup   bool
}

func parseFlags(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("heddle-feature-discovery", flag.ContinueOnError)
	fs.SetOutput(stderr)
	o.RegisterFlags(fs)
	o.RegisterHost(fs, time.Minute)
	fs.BoolVar(&o.oneshot, "oneshot", false, "look once, write, and exit")
	fs.BoolVar(&o.dryRun, "dry-run", false, "print what would change and write nothing")
	fs.BoolVar(&o.cleanup, "cleanup", false,
		"remove every label and taint that this daemon owns; without --oneshot stay idle then, for a DaemonSet")
	fs.StringVar(&o.outputFile, "output-file", "",
		"write the labels to this node-feature-discovery feature file, not to the Node; no taints, no API server")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9101", "address of /metrics, /healthz and /readyz; empty: none")
	if err := o.Parse(fs, args, o.check); err != nil {
		return nil, err
	}
	return o, nil
}

// check finds what the flag package cannot, and fills the node's name.
func (o *options) check() error {
	if o.cleanup && o.dryRun {
		return errors.New("--cleanup and --dry-run exclude each other")
	}
	return o.CheckHost()
}
