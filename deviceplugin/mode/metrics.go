package mode

import "github.com/prometheus/client_golang/prometheus"

func pendingDesc() *prometheus.Desc {
	return prometheus.NewDesc("heddle_mode_pending",
		"1 for every GPU that is handed out in another mode than the configuration wants, by UUID.", []string{"gpu"}, nil)
}

func cordonedDesc() *prometheus.Desc {
	return prometheus.NewDesc("heddle_card_cordoned",
		"1 for every GPU that an operator took out, by UUID.", []string{"gpu"}, nil)
}

// Describe implements [prometheus.Collector].
func (t *Tracker) Describe(descs chan<- *prometheus.Desc) {
	descs <- pendingDesc()
	descs <- cordonedDesc()
}

// Collect implements [prometheus.Collector].
func (t *Tracker) Collect(metrics chan<- prometheus.Metric) {
	seen := map[string]bool{}
	for _, c := range t.Cards() {
		if seen[c.UUID] {
			continue
		}
		seen[c.UUID] = true
		if c.Until != "" {
			metrics <- prometheus.MustNewConstMetric(pendingDesc(), prometheus.GaugeValue, 1, c.UUID)
		}
		if c.Cordoned {
			metrics <- prometheus.MustNewConstMetric(cordonedDesc(), prometheus.GaugeValue, 1, c.UUID)
		}
	}
}
