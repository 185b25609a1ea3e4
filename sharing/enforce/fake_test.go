package enforce

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const fakeName = "nvidia-cuda-mps-control"

// fakes is where the stand-in for nvidia-cuda-mps-control is (testdata/control).
// It is a program of its own, and not this one once more, since each command is
// a process, and one with the race detector takes a second to begin.
var fakes string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	fakes = dir
	m.Run()
}

// fakeControl builds the stand-in, the first time.
func fakeControl(t *testing.T) string {
	t.Helper()
	path := filepath.Join(fakes, fakeName)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/control").CombinedOutput()
	if err != nil {
		t.Fatalf("build of the stand-in: %v\n%s", err, out)
	}
	return path
}

// alive are those of the processes of a fake daemon that are no zombies.
func alive(pids []int) []int {
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
