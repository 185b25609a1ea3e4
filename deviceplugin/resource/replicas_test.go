package resource

import (
	"cmp"
	"slices"
	"strings"
	"testing"
)

func byName(a, b *replicated) int { return cmp.Compare(a.Name, b.Name) }

func TestPreferReplicas(t *testing.T) {
	for _, tt := range []struct {
		name            string
		available, must []string
		size            int
		want            []string
		err             string
	}{
		{name: "different devices first", available: []string{"a::0", "a::1", "b::7", "b::3"}, size: 2, want: []string{"a::0", "b::3"}},
		{name: "then the lowest numbers", available: []string{"a::10", "a::9", "b::0"}, size: 3, want: []string{"a::10", "a::9", "b::0"}},
		{
			name:      "what is given counts",
			available: []string{"a::0", "a::1", "b::0"}, must: []string{"a::1"}, size: 2, want: []string{"a::1", "b::0"},
		},
		{name: "too many", available: []string{"a::0"}, size: 2, err: "2 of 1 replicas"},
		{name: "given and not available", available: []string{"a::0"}, must: []string{"b::0"}, size: 1, want: []string{"b::0"}},
		{name: "the same twice", available: []string{"a::0", "a::0"}, size: 2, err: "not available"},
		{name: "devices of one pod each", available: []string{"c", "a", "b"}, size: 2, want: []string{"a", "b"}},
		{
			name:      "beside a replica of the time when it was shared",
			available: []string{"a", "b", "c"}, must: []string{"a::3"}, size: 2, want: []string{"a::3", "b"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := preferReplicas(tt.available, tt.must, tt.size, byName)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %v, %v; want %v", got, err, tt.want)
			}
		})
	}
}
