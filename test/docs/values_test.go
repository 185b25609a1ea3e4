package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// value is a key of the chart's values in a span of code, such as gpuDevice.enabled=true.
var value = regexp.MustCompile("`([a-z][A-Za-z]*(?:\\.[A-Za-z]+)+)[=`:]")

// notOfTheChart begin like values: a section of heddle's own configuration, a key of Flux's HelmRelease.
var notOfTheChart = regexp.MustCompile(`^config\.|^uninstall\.timeout$`)

// What a page names as a value of the chart is one. Below mappings without keys, and Kubernetes types, anything goes.
func TestChartValues(t *testing.T) {
	text, err := os.ReadFile(root + "/deploy/helm/heddle/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	found := 0
	for name, page := range Pages(t, root) {
		for _, m := range value.FindAllStringSubmatch(block.ReplaceAllString(page, ""), -1) {
			parts := strings.Split(m[1], ".")
			if section, is := values[parts[0]].(map[string]any); is && len(section) > 0 && !notOfTheChart.MatchString(m[1]) {
				found++
				if !has(section, parts[1:]) {
					t.Errorf("%s: the chart has no value %s", name, m[1])
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("%d values found", found)
	}
}

// has follows a path; a mapping without keys, and null, take any.
func has(section map[string]any, path []string) bool {
	next, is := section[path[0]]
	if !is || len(path) == 1 || path[0] == "securityContext" {
		return is
	}
	deeper, is := next.(map[string]any)
	return next == nil || is && (len(deeper) == 0 || has(deeper, path[1:]))
}
