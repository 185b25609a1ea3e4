package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/strict"
	"github.com/heddle-dev/heddle/test/golden"
)

// TestFaults: the file has configurations and all faults of each.
func TestFaults(t *testing.T) {
	golden.Rows(t, "testdata/faults.txt", *update, func(text string) string {
		cluster, nodes, _ := strings.Cut(text, "\n-- nodes-config\n")
		_, err := config.Parse(files(cluster, nodes), &rule.CEL{})
		var fault *strict.Error
		if !errors.As(err, &fault) || fault.File == "" {
			t.Errorf("%s\nno strict.Error in %v", text, err)
			return ""
		}
		return err.Error()
	})
}

// A label that describes hardware may choose a configuration, because it stays.
func TestSelectorsThatHold(t *testing.T) {
	parse(t, "labels: [{key: a, value: node}]", `
- nodeSelector: {nvidia.com/gpu.product: NVIDIA-H20, nvidia.com/gpu.count: "8"}
  mode: sgpu
- nodeSelector: {pool: x}
  domains: {vendor: a.com}
`)
}
