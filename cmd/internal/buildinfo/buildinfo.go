// Package buildinfo has the metric with the version of a program. It is separate from package
// program for the schedulers, which are not such daemons.
package buildinfo

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// New returns heddle_build_info of this version.
func New(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "heddle", Name: "build_info", Help: "1, with the version of heddle and of Go that built it.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}
