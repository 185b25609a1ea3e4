package gpu

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseChannels(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []int
		err  string
	}{
		{"0", []int{0}, ""},
		{"17,0", []int{17, 0}, ""},
		{"1048575", []int{1048575}, ""},
		{"1048576", nil, `invalid IMEX channel "1048576": want numbers such as 0`},
		{"", nil, `invalid IMEX channel "": want numbers such as 0`},
		{"0,", nil, `invalid IMEX channel "": want numbers such as 0`},
		{"0, 1", nil, `invalid IMEX channel " 1": want numbers such as 0`},
		{"-1", nil, `invalid IMEX channel "-1": want numbers such as 0`},
		{"00", nil, `invalid IMEX channel "00": want numbers such as 0`},
		{"all", nil, `invalid IMEX channel "all": want numbers such as 0`},
		{strings.Repeat("9", 1000), nil, `invalid IMEX channel "` + strings.Repeat("9", 29) + `...": want numbers such as 0`},
	} {
		got, err := ParseChannels(tt.text)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || text != tt.err {
			t.Errorf("%q: error %q, want %q (-want +got):\n%s", tt.text, text, tt.err, diff)
		}
	}
}
