package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// errUsage means that the flags were wrong; the reason is already printed.
var errUsage = errors.New("usage")

type options struct {
	nodeName, machine, config, kubeconfig string
	sysfsRoot, devRoot, procRoot          string
	driverRoot, clusterManagerSecret      string
	metricsAddress, logFormat             string
	logLevel                              slog.Level
	interval                              time.Duration
	oneshot, dryRun, version              bool
}

func parseFlags(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("heddle-topo-worker", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"),
		"name of this machine's Node; default $NODE_NAME, then the host name")
	fs.StringVar(&o.machine, "machine", "host",
		"host, or a dump of `heddle inspect -o json` to replay; a replay has no cables, so neither ib nor lldp is asked")
	fs.StringVar(&o.config, "config", "", "directory with the ConfigMap's keys as files; empty: built-in defaults")
	fs.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig; empty: the pod's service account")
	fs.DurationVar(&o.interval, "interval", 30*time.Second, "longest time between two passes")
	fs.StringVar(&o.sysfsRoot, "sysfs-root", "/sys", "where the host's sysfs is")
	fs.StringVar(&o.devRoot, "dev-root", "/dev", "where the host's device nodes are")
	fs.StringVar(&o.procRoot, "proc-root", "/proc", "where the host's procfs is")
	fs.StringVar(&o.driverRoot, "driver-root", "",
		"where the NVIDIA driver is installed; empty: the dynamic loader finds its library")
	fs.StringVar(&o.clusterManagerSecret, "cluster-manager-secret", "",
		"directory with the files user, password and perhaps ca.crt of a Secret; empty: no authentication")
	fs.BoolVar(&o.oneshot, "oneshot", false, "look until every source has spoken, publish, and exit")
	fs.BoolVar(&o.dryRun, "dry-run", false, "with --oneshot: print the NodeTopology and write nothing")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9103", "address of /metrics, /healthz and /readyz; empty: none")
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
		fmt.Fprintln(stderr, "heddle-topo-worker:", err)
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
	case o.interval < time.Second:
		return fmt.Errorf("--interval: %s is less than 1s", o.interval)
	case o.dryRun && !o.oneshot:
		return errors.New("--dry-run goes with --oneshot only")
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
