package main

import (
	"os"
	"strings"
	"testing"

	"volcano.sh/volcano/pkg/scheduler"
	"volcano.sh/volcano/pkg/scheduler/framework"
)

// Volcano only logs a plugin that it does not know, and runs without it.
func TestDocumentedConfigurations(t *testing.T) {
	text, err := os.ReadFile("../../deploy/examples/volcano-scheduler-conf.yaml")
	if err != nil {
		t.Fatal(err)
	}
	register(t.Context())
	documents := strings.Split(string(text), "\n---\n")
	for i, own := range []string{podAffinityName, gpuAwareName} {
		actions, tiers, _, _, err := scheduler.UnmarshalSchedulerConf(documents[i])
		if err != nil || len(actions) != 3 {
			t.Fatalf("%d actions, %v", len(actions), err)
		}
		found := false
		for _, tier := range tiers {
			for _, plugin := range tier.Plugins {
				build, known := framework.GetPluginBuilder(plugin.Name)
				if !known {
					t.Errorf("plugin %s is unknown", plugin.Name)
				} else if plugin.Name == own {
					found = build(plugin.Arguments).Name() == own
				}
			}
		}
		if !found {
			t.Errorf("no plugin %s in\n%s", own, documents[i])
		}
	}
}

func TestVersion(t *testing.T) {
	if got := volcano(); got != "v1.14.1" {
		t.Errorf("Volcano %s", got)
	}
}
