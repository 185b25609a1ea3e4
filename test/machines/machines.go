// Package machines holds one machine file per shape of node, each with golden
// outputs beside it, and hands them to tests.
//
// The files are what `heddle inspect -o json` prints on such a node. README.md has
// their sources.
package machines

import (
	"embed"
	"io/fs"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/machine"
)

//go:embed *.json
var files embed.FS

// Load decodes the machine file NAME.json.
func Load(tb testing.TB, name string) *machine.Machine {
	tb.Helper()
	m, err := machine.Decode(Dump(tb, name))
	if err != nil {
		tb.Fatalf("machine file %s: %v", name, err)
	}
	return m
}

// Dump is the text of the machine file NAME.json.
func Dump(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := files.ReadFile(name + ".json")
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Names lists all machine files, sorted, without their ".json".
func Names(tb testing.TB) []string {
	tb.Helper()
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		tb.Fatal(err)
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".json"))
	}
	return names
}
