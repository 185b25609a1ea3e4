// Command heddle-scheduler is kube-scheduler with the plugin Heddle, which
// places gangs by the map of the fabric. Its flags, its configuration and its
// endpoints are kube-scheduler's.
package main

import (
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the version
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/heddle-dev/heddle/topo/scheduler"
)

func main() {
	// kube-scheduler logs through klog, and its flags say how.
	log := slog.New(logr.ToSlogHandler(klog.Background()))
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(scheduler.Name, scheduler.Factory(log, host()...)))))
}
