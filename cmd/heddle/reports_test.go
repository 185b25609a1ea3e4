package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/golden"
)

// TestReports runs the commands of users' reports. Each folder has what a user had, the commands, one on each line, and
// what they print.
func TestReports(t *testing.T) {
	folders, err := filepath.Glob("testdata/reports/*")
	if err != nil || len(folders) == 0 {
		t.Fatal(folders, err)
	}
	for _, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Chdir(folder)
			commands, err := os.ReadFile("commands")
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for command := range strings.Lines(string(commands)) {
				stdout, stderr, err := clitest.Run(t, newCommand("heddle"), strings.Fields(command)...)
				fmt.Fprintf(&got, "$ heddle %s%s%s", command, stdout, stderr)
				if err != nil {
					fmt.Fprintf(&got, "error: %v\n", err)
				}
			}
			golden.Compare(t, "output", got.String(), *update)
		})
	}
}
