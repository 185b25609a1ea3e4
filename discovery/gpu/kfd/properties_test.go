package kfd

import (
	"strings"
	"testing"
)

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]uint64{"ue: 3\nce: 1\n": 3, "ce: 4\nue: 0\n": 0, "ue: 1\nce: 0\nde: 7\n": 1} {
		if got, err := parseErrors(text, "ue"); got != want || err != nil {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ue", "ue: -1", "query error", "ue: many"} {
		if got, err := parseErrors(text, "ue"); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

func FuzzParseProperties(f *testing.F) {
	f.Add("simd_count 416\nunique_id 18446744073709551615\nlocation_id 25344\n")
	f.Add("simd_count 416\ngfx_targ")
	f.Add("type 11\nnode_to -1\n")
	f.Add(" \n\n")
	f.Add(strings.Repeat("a 1\n", 2000))
	f.Fuzz(func(t *testing.T, text string) {
		p := parseProperties(text)
		if len(p) > maxProperties {
			t.Errorf("%d properties", len(p))
		}
		for name, value := range p {
			if strings.ContainsAny(name, " \n") || p.need(name) != nil {
				t.Errorf("property %q is %d", name, value)
			}
		}
		if linked := linkOf("0000:05:00.0", p); linked.Links < 1 || linked.Links > maxLinks || linked.MBps != nil && *linked.MBps <= 0 {
			t.Errorf("link %+v of %q", linked, text)
		}
		if _, err := parseErrors(text, "ue"); err == nil && !strings.Contains(text, "ue") {
			t.Errorf("%q has a counter", text)
		}
		_ = architecture(p["gfx_target_version"])
	})
}
