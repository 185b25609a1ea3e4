// Package golden compares texts with files that a test writes with its flag -update.
package golden

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Compare fails the test if got differs from the file. With update it writes the file first.
func Compare(tb testing.TB, file, got string, update bool) {
	tb.Helper()
	if update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		tb.Errorf("%s (-file +got; -update writes it):\n%s", file, diff)
	}
}

// Rows compares what run makes of each row of a file with the result that the file has. A row is a line of "## " and a
// name, the input, a line "=>", and the result. With update it writes the results first.
func Rows(tb testing.TB, file string, update bool, run func(input string) string) {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	var got strings.Builder
	for row := range strings.SplitSeq(strings.TrimPrefix(string(text), "## "), "\n## ") {
		name, rest, _ := strings.Cut(row, "\n")
		input, _, found := strings.Cut("\n"+rest, "\n=>\n")
		if !found {
			tb.Fatalf("%s: %q has no line =>", file, name)
		}
		fmt.Fprintf(&got, "## %s%s\n=>\n%s\n", name, input, run(strings.TrimPrefix(input, "\n")))
	}
	Compare(tb, file, got.String(), update)
}
