package main

import (
	"os"
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
)

// loaded is the documented configuration, as kube-scheduler reads it.
func loaded(t testing.TB) *config.KubeSchedulerConfiguration {
	t.Helper()
	text, err := os.ReadFile("testdata/scheduler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, text)
}

// decoded is a configuration with kube-scheduler's defaults.
func decoded(t testing.TB, text []byte) *config.KubeSchedulerConfiguration {
	t.Helper()
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
	if err := validation.ValidateKubeSchedulerConfiguration(loaded(t)); err != nil {
		t.Error(err)
	}
}
