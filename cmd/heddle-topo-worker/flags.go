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
	clusterManagerSecret, metricsAddress string
	oneshot, dryRun                      bool
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	// A replay has no cables: neither ib nor lldp is asked.
	o.RegisterHost(fs, 30*time.Second)
	fs.StringVar(&o.clusterManagerSecret, "cluster-manager-secret", "",
		"directory with the files user, password and perhaps ca.crt of a Secret; empty: no authentication")
	fs.BoolVar(&o.oneshot, "oneshot", false, "wait until every source has answered, publish, and exit")
	fs.BoolVar(&o.dryRun, "dry-run", false, "with --oneshot: print the NodeTopology and write nothing")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9103", "address of /metrics, /healthz and /readyz; empty: none")
}

// Check finds what the flag package cannot, and fills the node's name.
func (o *options) Check() error {
	if o.dryRun && !o.oneshot {
		return errors.New("--dry-run goes with --oneshot only")
	}
	return o.CheckHost()
}
