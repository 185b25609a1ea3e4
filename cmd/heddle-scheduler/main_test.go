package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
)

const (
	documented       = "testdata/scheduler.yaml"
	documentedNative = "testdata/scheduler-generic-workload.yaml"
)

// TestMain runs all tests with the gates of the program.
func TestMain(m *testing.M) {
	if err := overrideGates(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// loaded is a documented configuration, as kube-scheduler reads it.
func loaded(tb testing.TB, file string) *config.KubeSchedulerConfiguration {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return decoded(tb, text)
}

// decoded is a configuration with kube-scheduler's defaults.
func decoded(tb testing.TB, text []byte) *config.KubeSchedulerConfiguration {
	tb.Helper()
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		tb.Fatal(err)
	}
	c, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		tb.Fatalf("it is a %T", object)
	}
	c.APIVersion = "kubescheduler.config.k8s.io/v1"
	return c
}

func TestVersions(t *testing.T) {
	var out strings.Builder
	if err := versions(&out); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^heddle-scheduler dev\nKubernetes v1\.\d+\.\d+\n$`).MatchString(out.String()) {
		t.Errorf("it prints %q", out.String())
	}
}

func TestHelpBeginsWithWhatItIs(t *testing.T) {
	c := command()
	var out strings.Builder
	c.SetOut(&out)
	c.SetArgs([]string{"--help"})
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "heddle-scheduler is kube-scheduler with ") ||
		!strings.Contains(out.String(), "Usage:\n  heddle-scheduler [flags]") {
		t.Errorf("it prints %.300q", out.String())
	}
}

func TestConfigurationIsValid(t *testing.T) {
	for _, file := range []string{documented, documentedNative} {
		if err := validation.ValidateKubeSchedulerConfiguration(loaded(t, file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
