package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

type options struct {
	program.Flags
	listen, probeListen string
	authenticate        bool
	exports             publish.Exports
	exportText          string
	lease               publish.Lease
	tlsDir              string
	qps, burst          int
	spares              intstr.IntOrString
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	fs.StringVar(&o.listen, "listen", ":9001", "address of the API and the page")
	fs.StringVar(&o.probeListen, "probe-listen", "",
		"address of /healthz and /readyz alone, in plain HTTP; empty: they are on --listen only")
	fs.StringVar(&o.exportText, "exports", "labels,conditions",
		"what the leader writes: labels, topograph (labels with NVIDIA topograph's keys), conditions (HeddleFabric of "+
			"Nodes, and Events), hypernode (Volcano), kueue, kai, imex (ResourceSlices), with commas between, or none; what is "+
			"not named is removed")
	fs.StringVar(&o.lease.Namespace, "namespace", os.Getenv("POD_NAMESPACE"),
		"namespace of the lease, whose holder writes; default $POD_NAMESPACE; empty: always write")
	fs.Func("spares", "idle nodes of each lowest group that heddle-scheduler keeps for the repair of running gangs, or a "+
		"percentage: the scheduler's argument", func(text string) error {
		o.spares = intstr.Parse(text)
		_, err := intstr.GetScaledValueFromIntOrPercent(&o.spares, 1, true)
		return err
	})
	fs.StringVar(&o.tlsDir, "tls-dir", "",
		"directory with the files tls.crt and tls.key to serve HTTPS with, read again when they change; empty: HTTP")
	fs.BoolVar(&o.authenticate, "authenticate", false,
		"ask for a bearer token whose user may get the path (nonResourceURLs of a ClusterRole); needs --tls-dir")
}

// Check finds what the flag package cannot, and reads what has a form of its
// own.
func (o *options) Check() error {
	if o.authenticate && o.tlsDir == "" {
		return errors.New("--authenticate: a token must not travel in the clear: give --tls-dir")
	}
	var err error
	if o.qps, o.burst, err = rates(os.Getenv); err != nil {
		return err
	}
	if err := o.parts(); err != nil {
		return err
	}
	o.lease.Name, o.lease.Identity = "heddle-topo-master", os.Getenv("POD_NAME")
	if o.lease.Identity == "" {
		if o.lease.Identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("$POD_NAME is not set, and the host has no name: %w", err)
		}
	}
	return nil
}

// parts reads the flags that are lists.
func (o *options) parts() error {
	names := []string{
		export.FormatLabels, "topograph", "conditions", export.FormatHyperNode, export.FormatKueue, export.FormatKAI,
		"imex", "none", "",
	}
	on := map[string]bool{}
	for word := range strings.SplitSeq(o.exportText, ",") {
		word = strings.TrimSpace(word)
		if !slices.Contains(names, word) {
			return fmt.Errorf("unsupported --exports %.40q: want %s", word, strings.Join(names[:8], ", "))
		}
		on[word] = true
	}
	o.exports = publish.Exports{
		Labels:     export.LabelSets{Kinds: on[export.FormatLabels], Topograph: on["topograph"]},
		Conditions: on["conditions"], HyperNodes: on[export.FormatHyperNode],
		Kueue: on[export.FormatKueue], KAI: on[export.FormatKAI], IMEX: on["imex"],
	}
	if (o.exports.Kueue || o.exports.KAI) && !o.exports.Labels.Kinds {
		return errors.New("--exports: kueue and kai read the labels: name labels too")
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

// levelsOf returns the levels of the configuration.
func levelsOf(t *config.Topology) []fabric.Level {
	if t.Mode != config.TopologyCustom {
		return fabric.Preset(fabric.Mode(t.Mode), t.NodeNumber)
	}
	levels := make([]fabric.Level, len(t.Levels))
	for i, l := range t.Levels {
		levels[i] = fabric.Level{Kind: string(l.Kind), By: fabric.Evidence(l.By), Nodes: l.Nodes}
	}
	return levels
}
