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
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the version
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/heddle-dev/heddle/cmd/internal/buildinfo"
	"github.com/heddle-dev/heddle/topo/scheduler/plugin"
)

// version is set by the linker.
var version = "dev"

func main() {
	legacyregistry.Registerer().MustRegister(buildinfo.New(version))
	os.Exit(cli.Run(command()))
}

// command is kube-scheduler's, with the plugin; --version prints both versions,
// where kube-scheduler's own would print neither: it takes Kubernetes' build to
// set it.
func command() *cobra.Command {
	// kube-scheduler logs through klog, and its flags configure that.
	log := slog.New(logr.ToSlogHandler(klog.Background()))
	process := plugin.Process{
		Registerer: legacyregistry.Registerer(), Elections: legacyregistry.DefaultGatherer, Queue: &plugin.Queue{},
	}
	c := app.NewSchedulerCommand(app.WithPlugin(plugin.Name, plugin.Factory(log, process)),
		app.WithPlugin(plugin.QueueName, process.Queue.Factory))
	c.Use = "heddle-scheduler"
	c.Long = `heddle-scheduler is kube-scheduler with the plugin Heddle: it places gangs of pods by the topology of
the fabric, and shares of GPUs on GPUs. Flags and configuration are kube-scheduler's;
docs/scheduling.md describes the plugin.`
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
