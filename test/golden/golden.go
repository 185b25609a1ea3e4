// Package golden compares texts with files that a test writes with its flag -update.
package golden

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
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

// Change changes what v points to, by its JSON: a line has a path and a value, as "gpus/1/health/state "lost"". A value
// beyond the end of a list is added, and a path into a list without a value ends the list there.
func Change[T any](tb testing.TB, v *T, lines ...string) {
	tb.Helper()
	text, err := json.Marshal(v)
	var object any
	if err := errors.Join(err, json.Unmarshal(text, &object)); err != nil {
		tb.Fatal(err)
	}
	for _, line := range lines {
		path, value, _ := strings.Cut(line, " ")
		if object, err = set(object, strings.Split(path, "/"), value); err != nil {
			tb.Fatalf("%q: %v", line, err)
		}
	}
	text, err = json.Marshal(object)
	var changed T
	if err := errors.Join(err, json.Unmarshal(text, &changed)); err != nil {
		tb.Fatal(err)
	}
	*v = changed
}

func set(in any, path []string, value string) (out any, err error) {
	if len(path) == 0 {
		err = json.Unmarshal([]byte(value), &out)
		return out, err
	}
	switch in := in.(type) {
	case map[string]any:
		in[path[0]], err = set(in[path[0]], path[1:], value)
		return in, err
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || value == "" {
			return in[:i], err
		}
		if i == len(in) {
			in = append(in, nil)
		}
		in[i], err = set(in[i], path[1:], value)
		return in, err
	}
	return set(map[string]any{}, path, value)
}
