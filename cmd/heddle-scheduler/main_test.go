package main

import (
	"os"
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
)

const (
	documented       = "testdata/scheduler.yaml"
	documentedNative = "testdata/scheduler-generic-workload.yaml"
)

// loaded is a documented configuration, as kube-scheduler reads it.
func loaded(t testing.TB, file string) *config.KubeSchedulerConfiguration {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		t.Fatalf("it is a %T", object)
	}
	c.TypeMeta.APIVersion = "kubescheduler.config.k8s.io/v1"
	return c
}

func TestConfigurationIsValid(t *testing.T) {
	for _, file := range []string{documented, documentedNative} {
		if err := validation.ValidateKubeSchedulerConfiguration(loaded(t, file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
