// Package annotationtest checks what parsers of annotations have in common.
package annotationtest

import "testing"

// maxError is the most that an error about a hostile text may have, in bytes.
const maxError = 64 << 10

// Again checks that a text which is accepted is written as one of the same meaning, and
// that the error about another one is bounded.
func Again[V interface{ String() string }](t *testing.T, text string, parse func(string) (V, error)) {
	t.Helper()
	first, err := parse(text)
	if err != nil {
		if len(err.Error()) > maxError {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		return
	}
	second, err := parse(first.String())
	if err != nil || first.String() != second.String() {
		t.Errorf("%q is written as %q, which is read as %q, error %v", text, first, second, err)
	}
}
