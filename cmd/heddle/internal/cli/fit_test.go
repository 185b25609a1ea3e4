package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// Tables are made narrow by their last column first, and by their longest names then.
func TestFit(t *testing.T) {
	const reason = "3 of 5 fit, group leaf-07 is 4 GPUs short"
	for _, tt := range []struct {
		name  string
		rows  [][]string
		width int
		want  string
	}{
		{"it fits", [][]string{{"NAME", "WHY"}, {"a", reason}}, 60, "NAME  WHY\na     " + reason + "\n"},
		{
			"it stands below",
			[][]string{{"NAME", "GROUP", "WHY"}, {"größe", "nvlink-a84f3d2b.1", reason}, {"b", "-", ""}},
			26,
			"NAME   GROUP\n    WHY\ngröße  nvlink-a84f3d2b.1\n    3 of 5 fit, group\n    leaf-07 is 4 GPUs\n    short\nb      -\n",
		},
		{
			"a name loses its middle",
			[][]string{{"NAME", "GROUP", "WHY"}, {"a", "nvlink-a84f3d2b-e94c.1", "no"}},
			31,
			"NAME  GROUP                 WHY\na     nvlink-a84…2b-e94c.1  no\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Fit(Table(tt.rows), tt.width)); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

// What is no table stays, however long it is; tables beside it are made narrow.
func TestFitLeavesProse(t *testing.T) {
	prose := strings.Repeat("word ", 40) + "\n"
	table := Table([][]string{{"NAME", "WHY"}, {"a", strings.Repeat("reason ", 30)}})
	got := Fit(table+"\n"+prose, Width)
	if !strings.HasSuffix(got, "\n\n"+prose) {
		t.Errorf("the prose changed:\n%s", got)
	}
	head, _, _ := strings.Cut(got, "\n\n")
	for line := range strings.Lines(head) {
		if n := utf8.RuneCountInString(line); n > Width+1 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// Only whole cells and headers have colors: a node called Ready-1 is no status.
func TestPaint(t *testing.T) {
	got := paint("NAME     FREE GPUS  STATUS\nReady-1  8 of 8     Ready\nn2       0 of 8     Degraded\nn3  NotReady  2 miscabled\n")
	want := bold + "NAME     FREE GPUS  STATUS" + plain + "\nReady-1  8 of 8     " + green + "Ready" + plain +
		"\nn2       0 of 8     " + yellow + "Degraded" + plain + "\nn3  " + red + "NotReady" + plain + "  2 miscabled\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}
