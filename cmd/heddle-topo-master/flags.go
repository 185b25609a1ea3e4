package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

type options struct {
	program.Flags
	listen, probeListen        string
	mode                       string
	staleAfter                 time.Duration
	countPods, leaderElect     bool
	exports                    publish.Exports
	labelConflicts             string
	namespace, lease, identity string
	tlsCert, tlsKey            string
	authenticate               bool
	exportText                 string
	qps, burst                 int
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	fs.StringVar(&o.listen, "listen", ":9001", "address of the API and the page")
	fs.StringVar(&o.probeListen, "probe-listen", "",
		"address of /healthz and /readyz alone, in plain HTTP; empty: they are on --listen only")
	fs.StringVar(&o.mode, "mode", "",
		"auto, dragonfly, switchbox, leaf, nvlink or custom; empty: topology.mode of the configuration")
	fs.DurationVar(&o.staleAfter, "stale-after", fabric.DefaultStaleAfter,
		"age from which a worker's heartbeat makes its node Degraded; at least two heartbeats, 2h")
	fs.BoolVar(&o.countPods, "count-pods", true, "watch pods, to know how many GPUs are free and what gangs there are")
	fs.StringVar(&o.exportText, "exports", "labels,conditions",
		"what the leader writes: labels, topograph (labels with NVIDIA topograph's keys), conditions (HeddleFabric of "+
			"Nodes, and Events), hypernode (Volcano), kueue, kai, with commas between, or none; what is not named is removed")
	fs.StringVar(&o.labelConflicts, "label-conflicts", "yield",
		"what to do with a label that another field manager holds with another value: yield or force")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "write only while holding the lease; false: always write")
	fs.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the lease; default $POD_NAMESPACE")
	fs.StringVar(&o.lease, "lease", "heddle-topo-master", "name of the lease")
	fs.StringVar(&o.identity, "identity", os.Getenv("POD_NAME"),
		"this replica's name in the lease; default $POD_NAME, then the host name")
	fs.StringVar(&o.tlsCert, "tls-cert", "", "certificate to serve HTTPS with, read again when it changes; empty: HTTP")
	fs.StringVar(&o.tlsKey, "tls-key", "", "private key of --tls-cert")
	fs.BoolVar(&o.authenticate, "authenticate", false,
		"ask for a bearer token whose user may get the path (nonResourceURLs of a ClusterRole); needs --tls-cert")
}

// leastStaleAfter is one heartbeat more than the longest time between two.
const leastStaleAfter = 2 * v1alpha1.HeartbeatInterval

// Check finds what the flag package cannot, and reads what has a form of its
// own.
func (o *options) Check() error {
	switch {
	case o.labelConflicts != "yield" && o.labelConflicts != "force":
		return fmt.Errorf("--label-conflicts: %q is neither yield nor force", o.labelConflicts)
	case o.staleAfter <= 0:
		return fmt.Errorf("invalid --stale-after %s: want a positive duration", o.staleAfter)
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case o.authenticate && o.tlsCert == "":
		return errors.New("--authenticate: a token must not travel in the clear: give --tls-cert")
	case o.leaderElect && o.namespace == "":
		return errors.New("--namespace is not set and $POD_NAMESPACE is empty: where is the lease?")
	}
	var err error
	if o.qps, o.burst, err = rates(os.Getenv); err != nil {
		return err
	}
	if err := o.parts(); err != nil {
		return err
	}
	if o.identity == "" {
		if o.identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("--identity is not set, and the host has no name: %w", err)
		}
	}
	return nil
}

// parts reads the flags that are lists.
func (o *options) parts() error {
	names := []string{
		export.FormatLabels, "topograph", "conditions", export.FormatHyperNode, export.FormatKueue, export.FormatKAI,
		"none", "",
	}
	on := map[string]bool{}
	for word := range strings.SplitSeq(o.exportText, ",") {
		word = strings.TrimSpace(word)
		if !slices.Contains(names, word) {
			return fmt.Errorf("unsupported --exports %.40q: want %s", word, strings.Join(names[:7], ", "))
		}
		on[word] = true
	}
	o.exports = publish.Exports{
		Labels:     export.LabelSets{Kinds: on[export.FormatLabels], Topograph: on["topograph"]},
		Conditions: on["conditions"], HyperNodes: on[export.FormatHyperNode],
		Kueue: on[export.FormatKueue], KAI: on[export.FormatKAI],
	}
	if (o.exports.Kueue || o.exports.KAI) && !o.exports.Labels.Kinds {
		return errors.New("--exports: kueue and kai read the labels: name labels too")
	}
	if mode := fabric.Mode(o.mode); mode != "" && mode != fabric.ModeCustom && fabric.Preset(mode, 0) == nil {
		return fmt.Errorf("unknown --mode %.40q: want auto, dragonfly, switchbox, leaf, nvlink or custom", o.mode)
	}
	return nil
}

// rates returns how many requests a second, and how many at once, the API server gets. Operators of
// such suites set the environment; the second spelling of the burst is the one in their commands.
// Without it a fleet of 16,384 nodes gets its first labels in under three minutes.
func rates(env func(string) string) (qps, burst int, err error) {
	qps, burst = 100, 200
	for _, name := range []string{"CLIENT_GO_QPS", "CLIENT_GO_BRUST", "CLIENT_GO_BURST"} {
		text := env(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		switch {
		case err != nil || n < 1:
			return 0, 0, fmt.Errorf("%s: invalid number %.40q: want a whole number above 0", name, text)
		case name == "CLIENT_GO_QPS":
			qps = n
		default:
			burst = n
		}
	}
	return qps, burst, nil
}

// preset returns the levels of --mode and the configuration; the flag wins.
func (o *options) preset(t *config.Topology) ([]fabric.Level, error) {
	mode := fabric.Mode(cmp.Or(o.mode, string(t.Mode)))
	if mode != fabric.ModeCustom {
		return fabric.Preset(mode, t.NodeNumber), nil
	}
	if len(t.Levels) == 0 {
		return nil, errors.New("mode custom: topology.levels of the configuration is missing")
	}
	levels := make([]fabric.Level, len(t.Levels))
	for i, l := range t.Levels {
		levels[i] = fabric.Level{Kind: string(l.Kind), By: fabric.Evidence(l.By), Nodes: l.Nodes}
	}
	return levels, nil
}
