// Command heddle-scheduler is kube-scheduler with the plugin Heddle, which
// places gangs by the topology tree. Its flags, its configuration and its
// endpoints are kube-scheduler's.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the version
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/features"

	"github.com/heddle-dev/heddle/cmd/internal/buildinfo"
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

// command is kube-scheduler's, with the plugin; --version prints both versions,
// where kube-scheduler's own would print neither: it takes Kubernetes' build to
// set it.
func command() *cobra.Command {
	// kube-scheduler logs through klog, and its flags configure that.
	log := slog.New(logr.ToSlogHandler(klog.Background()))
	queue := &plugin.Queue{}
	c := app.NewSchedulerCommand(
		app.WithPlugin(plugin.Name, plugin.Factory(log, legacyregistry.Registerer(), legacyregistry.DefaultGatherer, queue)),
		app.WithPlugin(plugin.QueueName, queue.Factory))
	c.Use = "heddle-scheduler"
	c.Long = `heddle-scheduler is kube-scheduler with the plugin Heddle: it places gangs of pods by the topology of
the fabric, and shares of GPUs on GPUs. Flags and configuration are kube-scheduler's;
docs/concepts/scheduling.md describes the plugin.`
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if f := c.Flags().Lookup("version"); f != nil && f.Value.String() == "true" {
			return versions(c.OutOrStdout())
		}
		return run(c, args)
	}
	return c
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
