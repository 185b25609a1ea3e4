// Package golden compares texts with files that a test writes with its flag -update.
package golden

import (
	"os"
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
