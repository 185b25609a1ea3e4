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
	clusterManagerSecret, metricsAddress string
	oneshot, dryRun                      bool
}

func parseFlags(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("heddle-topo-worker", flag.ContinueOnError)
	fs.SetOutput(stderr)
	o.RegisterFlags(fs)
	// A replay has no cables: neither ib nor lldp is asked.
	o.RegisterHost(fs, 30*time.Second)
	fs.StringVar(&o.clusterManagerSecret, "cluster-manager-secret", "",
		"directory with the files user, password and perhaps ca.crt of a Secret; empty: no authentication")
	fs.BoolVar(&o.oneshot, "oneshot", false, "look until every source has spoken, publish, and exit")
	fs.BoolVar(&o.dryRun, "dry-run", false, "with --oneshot: print the NodeTopology and write nothing")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9103", "address of /metrics, /healthz and /readyz; empty: none")
	if err := o.Parse(fs, args, o.check); err != nil {
		return nil, err
	}
	return o, nil
}

// check finds what the flag package cannot, and fills the node's name.
func (o *options) check() error {
	if o.dryRun && !o.oneshot {
		return errors.New("--dry-run goes with --oneshot only")
	}
	return o.CheckHost()
}
