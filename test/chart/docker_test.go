package chart

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The images are built from what the Dockerfile copies, and no test builds
// them: it and its list of what it may see name every directory that the
// programs are made of.
func TestDockerfileHasTheSources(t *testing.T) {
	const module = "github.com/heddle-dev/heddle/"
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var want []string
	for _, path := range lines(string(out)) {
		if inside, ours := strings.CutPrefix(path, module); ours {
			top, _, _ := strings.Cut(inside, "/")
			want = append(want, top)
		}
	}
	want = unique(want)
	read := func(file string) []string {
		text, err := os.ReadFile(root + "/deploy/docker/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return lines(string(text))
	}
	var copied, seen []string
	for _, line := range read("Dockerfile") {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "COPY" && words[1] == words[2] {
			copied = append(copied, words[1])
		}
	}
	for _, line := range read("Dockerfile.dockerignore") {
		if name, ok := strings.CutPrefix(line, "!"); ok && !strings.HasPrefix(name, "go.") {
			seen = append(seen, name)
		}
	}
	slices.Sort(copied)
	slices.Sort(seen)
	if diff := cmp.Diff(want, copied); diff != "" {
		t.Errorf("Dockerfile (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("Dockerfile.dockerignore (-want +got):\n%s", diff)
	}
}
