package program

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
)

// ConfigValid is the metric of a daemon's configuration. The daemon's name is a label, since
// heddle-node has several at one address, and each reads the files by itself.
func ConfigValid(daemon string, configs *config.Watcher) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "heddle", Name: "config_valid", ConstLabels: prometheus.Labels{"daemon": daemon},
		Help: "1 if the newest configuration is in use, 0 if the last good one is kept.",
	}, func() float64 {
		if configs.Err() != nil {
			return 0
		}
		return 1
	})
}
