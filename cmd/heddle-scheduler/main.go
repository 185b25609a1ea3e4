// Command heddle-scheduler is kube-scheduler with the plugin Heddle, which
// places gangs by the topology tree. Its flags, its configuration and its
// endpoints are kube-scheduler's.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the version
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/features"
	kube "k8s.io/kubernetes/pkg/scheduler"

	"github.com/heddle-dev/heddle/cmd/internal/buildinfo"
	"github.com/heddle-dev/heddle/internal/httpserve"
	"github.com/heddle-dev/heddle/topo/scheduler/plugin"
)

// version is set by the linker.
var version = "dev"

func main() {
	if err := overrideGates(); err != nil {
		fmt.Fprintln(os.Stderr, "heddle-scheduler:", err)
		os.Exit(1)
	}
	legacyregistry.Registerer().MustRegister(buildinfo.New(version))
	os.Exit(cli.Run(command()))
}

// overrideGates changes the default of a gate, before any flag of it: with it on
// kube-scheduler writes a nominated node into the status of each member of a gang that waits
// for the others. A gang that is rejected before that write comes back through the watch keeps
// the nomination (updatePod of kube-scheduler compares with what it has seen), and other pods
// do not get its room. Each write is also a request more.
func overrideGates() error {
	return utilfeature.DefaultMutableFeatureGate.OverrideDefault(features.NominatedNodeNameForExpectation, false)
}

// The limits of port 10259 leave room for the kubelet and Prometheus.
const (
	maxConns          = 64
	maxConnsPerSource = 16
)

// command is kube-scheduler's, with the plugin; --version prints both versions,
// where kube-scheduler's own would print neither: it takes Kubernetes' build to
// set it.
func command() *cobra.Command {
	o := options.NewOptions()
	c := &cobra.Command{
		Use: "heddle-scheduler",
		Long: `heddle-scheduler is kube-scheduler with the plugin Heddle: it places gangs of pods by the topology of
the fabric, and shares of GPUs on GPUs. Flags and configuration are kube-scheduler's;
docs/concepts/scheduling.md describes the plugin.`,
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return o.ComponentGlobalsRegistry.Set() },
		RunE: func(c *cobra.Command, _ []string) error {
			if f := c.Flags().Lookup("version"); f != nil && f.Value.String() == "true" {
				return versions(c.OutOrStdout())
			}
			return run(server.SetupSignalContext(), c, o)
		},
	}
	global := o.Flags.FlagSet("global")
	verflag.AddFlags(global)
	globalflag.AddGlobalFlags(global, c.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range o.Flags.FlagSets {
		c.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(c.OutOrStdout()) // 0 does not wrap.
	cliflag.SetUsageAndHelpFunc(c, *o.Flags, columns)
	return c
}

func run(ctx context.Context, c *cobra.Command, o *options.Options) (err error) {
	gates := o.ComponentGlobalsRegistry.FeatureGateFor(compatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(o.Logs, gates); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	cliflag.PrintFlags(c.Flags())
	if o.InformerName, err = cache.NewInformerName("kube-scheduler"); err != nil {
		return fmt.Errorf("name informers: %w", err)
	}
	config, scheduler, err := setup(ctx, o)
	if err != nil {
		return err
	}
	if gates, ok := gates.(featuregate.MutableFeatureGate); ok {
		gates.AddMetrics()
	}
	o.ComponentGlobalsRegistry.AddMetrics()
	return app.Run(ctx, config, scheduler) //nolint:wrapcheck // kube-scheduler's own.
}

// setup is kube-scheduler's, with the plugin, and with bounds for the clients of its port, which
// every pod can reach: kube-scheduler's own server lets any number send headers of 1 MiB.
func setup(ctx context.Context, o *options.Options) (*config.CompletedConfig, *kube.Scheduler, error) {
	// kube-scheduler logs through klog, and its flags configure that.
	log := slog.New(logr.ToSlogHandler(klog.Background()))
	queue := &plugin.Queue{}
	config, scheduler, err := app.Setup(ctx, o,
		app.WithPlugin(plugin.Name, plugin.Factory(log, legacyregistry.Registerer(), legacyregistry.DefaultGatherer, queue)),
		app.WithPlugin(plugin.QueueName, queue.Factory))
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // kube-scheduler's own.
	}
	if s := config.SecureServing; s != nil {
		s.Listener = httpserve.Limit(s.Listener, httpserve.Limits{Total: maxConns, PerSource: maxConnsPerSource}, log)
	}
	return config, scheduler, nil
}

func versions(w io.Writer) error {
	kubernetes := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "k8s.io/kubernetes" {
				kubernetes = m.Version
			}
		}
	}
	_, err := fmt.Fprintf(w, "heddle-scheduler %s\nKubernetes %s\n", version, kubernetes)
	return err
}
