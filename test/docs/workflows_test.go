package docs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// job is what a workflow's job runs in, and what it runs.
type job struct {
	Container container `json:"container"`
	Steps     []struct {
		Run  string `json:"run"`
		Uses string `json:"uses"`
	} `json:"steps"`
}

// container is an image, or an object with one.
type container struct {
	Image   string `json:"image"`
	Options string `json:"options"`
}

func (c *container) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, &c.Image) == nil {
		return nil
	}
	type object container // Without this method.
	return json.Unmarshal(text, (*object)(c))
}

// TestWorkflows is about the jobs that need Debian's packages: for a bare Debian .ci/run and the
// images, and git before the checkout, which has no history without it.
func TestWorkflows(t *testing.T) {
	for _, tt := range []struct{ file, job, runs, options string }{
		{"ci.yml", "ci", ".ci/run", "--privileged"},
		{"release.yml", "build", "make images", ""},
	} {
		text, err := os.ReadFile(filepath.Join(root, ".github/workflows", tt.file))
		if err != nil {
			t.Fatal(err)
		}
		var workflow struct {
			Jobs map[string]job `json:"jobs"`
		}
		if err := yaml.Unmarshal(text, &workflow); err != nil {
			t.Fatalf("%s: %v", tt.file, err)
		}
		j := workflow.Jobs[tt.job]
		if j.Container.Image != "debian:bookworm" || !strings.Contains(j.Container.Options, tt.options) {
			t.Errorf("%s: container %+v", tt.file, j.Container)
		}
		var order []string
		for _, step := range j.Steps {
			switch {
			case strings.Contains(step.Run, "apt-get install") && strings.Contains(step.Run, " git make "):
				order = append(order, "packages")
			case strings.HasPrefix(step.Uses, "actions/checkout@"), strings.HasPrefix(step.Uses, "actions/setup-go@"):
				order = append(order, strings.Split(step.Uses, "@")[0])
			case strings.Contains(step.Run, tt.runs):
				order = append(order, tt.runs)
			}
		}
		if want := []string{"packages", "actions/checkout", "actions/setup-go", tt.runs}; !slices.Equal(order, want) {
			t.Errorf("%s: steps %q, want %q", tt.file, order, want)
		}
	}
}
