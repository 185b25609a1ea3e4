package release_test

import (
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/release"
)

func TestParse(t *testing.T) {
	until := time.Date(2026, 11, 22, 23, 30, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, text string
		want       release.Request
		err        string
	}{
		{"none", "", release.Request{}, ""},
		{"all GPUs", `{"until":"2026-11-22T23:30:00Z"}`, release.Request{Until: until}, ""},
		{
			"one GPU", `{"until":"2026-11-22T23:30:00Z","gpus":["GPU-a"]}`,
			release.Request{Until: until, GPUs: []string{"GPU-a"}},
			"",
		},
		{"no end", `{"gpus":["GPU-a"]}`, release.Request{}, "needs an end"},
		{"no UUID", `{"until":"2026-11-22T23:30:00Z","gpus":["a b"]}`, release.Request{}, `invalid GPU UUID "a b"`},
		{"a typo", `{"unti":"2026-11-22T23:30:00Z"}`, release.Request{}, "unti"},
		{"two values", `{"until":"2026-11-22T23:30:00Z"}{}`, release.Request{}, "follows"},
		{"no JSON", "10m", release.Request{}, "heddle.dev/gpu-release"},
		{"long", `{"gpus":["` + strings.Repeat("a", 5000), release.Request{}, "more than"},
	} {
		got, err := release.Parse(tt.text)
		switch {
		case !got.Equal(tt.want):
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		case (err == nil) != (tt.err == ""), err != nil && !strings.Contains(err.Error(), tt.err):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.err)
		}
	}
}

func TestRequestEndsAndCovers(t *testing.T) {
	until := time.Date(2026, 11, 22, 23, 30, 0, 0, time.UTC)
	all, one := release.Request{Until: until}, release.Request{Until: until, GPUs: []string{"GPU-a"}}
	if !all.Active(until.Add(-time.Second)) || all.Active(until) || (release.Request{}).Active(until) {
		t.Error("a release lasts until its end, and the zero value never")
	}
	if !all.Covers("GPU-b") || !one.Covers("GPU-a") || one.Covers("GPU-b") {
		t.Error("a release without GPUs covers all, one with GPUs those alone")
	}
}
