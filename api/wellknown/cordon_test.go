package wellknown_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/wellknown"
)

func TestParseCordoned(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
		err        string
	}{
		{"none", "", []string{}, ""},
		{"blanks, repeats and empty words", " GPU-b,GPU-a ,,GPU-b", []string{"GPU-a", "GPU-b"}, ""},
		{"what is no UUID does not spoil the others", "GPU-a,../x,GPU-b::1", []string{"GPU-a"}, `invalid GPU UUID "../x"`},
		{"far too long", strings.Repeat("GPU-a,", 10000), nil, "has 60000 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := wellknown.ParseCordoned(tt.text)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v", err)
			}
		})
	}
	var many []string
	for i := range wellknown.MaxCordoned + 3 {
		many = append(many, fmt.Sprintf("G-%d", i))
	}
	got, err := wellknown.ParseCordoned(wellknown.FormatCordoned(many))
	if len(got) != wellknown.MaxCordoned || err == nil || !strings.Contains(err.Error(), "3 GPUs too many") {
		t.Errorf("%d GPUs, error %v", len(got), err)
	}
}

func FuzzParseCordoned(f *testing.F) {
	f.Add("GPU-a, GPU-b")
	f.Add(",,;")
	f.Fuzz(func(t *testing.T, text string) {
		uuids, _ := wellknown.ParseCordoned(text)
		again, err := wellknown.ParseCordoned(wellknown.FormatCordoned(uuids))
		if err != nil || !slices.Equal(again, uuids) || !slices.IsSorted(uuids) || len(uuids) > wellknown.MaxCordoned {
			t.Errorf("%q is %q, and again %q: %v", text, uuids, again, err)
		}
	})
}
