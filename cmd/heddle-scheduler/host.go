package main

import (
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/heddle-dev/heddle/topo/scheduler/plugin"
)

// host is what kube-scheduler has for the plugin beside the framework: its
// metrics, and who has won its leader election.
func host() []plugin.Option {
	return []plugin.Option{plugin.WithMetrics(legacyregistry.Registerer()), plugin.WithElection(won)}
}

// won tells whether this process has won kube-scheduler's leader election, and
// whether there is one. kube-scheduler tells its plugins nothing of it; its
// metric does, from when the election begins.
func won() (leads, known bool) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil && len(families) == 0 {
		return false, false
	}
	for _, family := range families {
		if family.GetName() != "leader_election_master_status" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "name" && label.GetValue() == "kube-scheduler" {
					return metric.GetGauge().GetValue() == 1, true
				}
			}
		}
	}
	return false, false
}
