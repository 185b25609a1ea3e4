package main

import (
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/heddle-dev/heddle/topo/scheduler/plugin"
)

// process is what kube-scheduler has for the plugin beside the framework: its
// metrics, and its leader election.
func process() plugin.Process {
	return plugin.Process{Registerer: legacyregistry.Registerer(), Won: won}
}

// won reports whether this process has won kube-scheduler's leader election, and
// whether there is one. kube-scheduler does not pass that to plugins; its metric has
// it, from when the election begins.
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
