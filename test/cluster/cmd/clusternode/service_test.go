//go:build linux

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseEndpoints(t *testing.T) {
	for _, tt := range []struct {
		name, list string
		want       []string
	}{
		{"no slice", `{"items": []}`, nil},
		{
			"ready, not ready, and not reported",
			`{"items": [{"ports": [{"port": 9001}], "endpoints": [
				{"addresses": ["10.244.0.7"], "conditions": {"ready": true}},
				{"addresses": ["10.244.0.8"], "conditions": {"ready": false}},
				{"addresses": ["10.244.0.9"], "conditions": {}}]}]}`,
			[]string{"10.244.0.7:9001", "10.244.0.9:9001"},
		},
		{"a slice without ports", `{"items": [{"ports": null, "endpoints": [{"addresses": ["10.244.0.7"]}]}]}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseEndpoints([]byte(tt.list))
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	if _, err := parseEndpoints([]byte("<html>")); err == nil {
		t.Error("HTML is taken for a list")
	}
}
