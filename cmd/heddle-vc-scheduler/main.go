// Command heddle-vc-scheduler is Volcano's vc-scheduler with the plugins
// gpu-podaffinity and gpu-aware. Its flags, its configuration and its endpoints are
// vc-scheduler's.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	_ "go.uber.org/automaxprocs" // As many threads as the container has processors.
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // The ways to authenticate that a kubeconfig may name.
	cliflag "k8s.io/component-base/cli/flag"
	componentbaseoptions "k8s.io/component-base/config/options"
	"k8s.io/klog/v2"
	"volcano.sh/volcano/cmd/scheduler/app"
	"volcano.sh/volcano/cmd/scheduler/app/options"
	_ "volcano.sh/volcano/pkg/scheduler/actions" // Volcano's own actions,
	"volcano.sh/volcano/pkg/scheduler/framework"
	_ "volcano.sh/volcano/pkg/scheduler/plugins"     // its plugins,
	_ "volcano.sh/volcano/pkg/scheduler/util/assert" // and its choice of what a broken invariant does.
	commonutil "volcano.sh/volcano/pkg/util"

	"github.com/heddle-dev/heddle/cmd/internal/buildinfo"
)

// version is set by the linker.
var version = "dev"

func main() {
	if err := run(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// flushEvery is the time between two flushes of the log, as in Volcano's scheduler.
const flushEvery = 5 * time.Second

// run is the main function of Volcano's cmd/scheduler, with the plugins.
func run() error {
	klog.InitFlags(nil)
	fs := pflag.CommandLine
	s := options.NewServerOption()
	s.AddFlags(fs)
	utilfeature.DefaultMutableFeatureGate.AddFlag(fs)
	commonutil.LeaderElectionDefault(&s.LeaderElection)
	s.LeaderElection.ResourceName = commonutil.GenerateComponentName(s.SchedulerNames)
	componentbaseoptions.BindLeaderElectionFlags(&s.LeaderElection, fs)
	s.RegisterOptions()
	cliflag.InitFlags()
	if s.PrintVersion {
		_, err := fmt.Fprintf(os.Stdout, "heddle-vc-scheduler %s\nVolcano %s\n", version, volcano())
		return err
	}
	if err := s.CheckOptionOrDie(); err != nil {
		return err
	}
	if s.CaCertFile != "" && s.CertFile != "" && s.KeyFile != "" {
		if err := s.ParseCAFiles(nil); err != nil {
			return fmt.Errorf("read certificates: %w", err)
		}
	}
	klog.StartFlushDaemon(flushEvery)
	defer klog.Flush()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	register(ctx)
	// Volcano serves the metrics of this registry.
	prometheus.DefaultRegisterer.MustRegister(buildinfo.New(version))
	return app.Run(s)
}

// register adds heddle's plugins to Volcano's.
func register(ctx context.Context) {
	// Volcano logs through klog, and its flags configure that.
	log := slog.New(logr.ToSlogHandler(klog.Background()))
	framework.RegisterPluginBuilder(podAffinityName, new(topologyMap).builder(ctx, log))
	framework.RegisterPluginBuilder(gpuAwareName, newGPUAware)
}

// volcano returns the version of Volcano: its own is set by its build.
func volcano() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "volcano.sh/volcano" {
				return m.Version
			}
		}
	}
	return "unknown"
}
