//go:build linux

package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVersionsAreHeddles: what the programs of a cluster, and the large tools, share with a module of heddle has
// the version that it has there. A package of another version has all that imports it compiled once more.
func TestVersionsAreHeddles(t *testing.T) {
	root, err := findSource()
	if err != nil {
		t.Skip(err)
	}
	const build = "test/cluster/build/"
	// Containers' devices are the runtime's business: it has its own CDI.
	runtime := []string{"tags.cncf.io/", "github.com/opencontainers/", "github.com/containerd/"}
	for _, tt := range []struct {
		folder, heddles string
		own             []string
	}{
		{"cmd/heddle-scheduler", ".", nil},
		{build + "containerd", ".", append(runtime, "go.opentelemetry.io/contrib/")},
		{build + "hyper", ".", runtime},
		{build + "kwok", ".", []string{"k8s.io/kubelet"}}, // A package that the later ones have no more.
		// Volcano requires these, for its controllers; its scheduler has next to nothing of them.
		{build + "training-operator", "cmd/heddle-vc-scheduler", []string{
			"github.com/evanphx/json-patch/v5", "k8s.io/apiextensions-apiserver", "k8s.io/metrics", "sigs.k8s.io/controller-runtime",
		}},
		{"tools/controllergen", ".", nil},
		{"tools/helm", ".", nil},
		{"test/chart/promql", ".", []string{"golang.org/x/exp", "github.com/felixge/httpsnoop"}},
	} {
		text := readModule(t, filepath.Join(root, tt.folder))
		for line := range strings.Lines(readModule(t, filepath.Join(root, tt.heddles))) {
			fields := strings.Fields(line)
			if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") ||
				slices.ContainsFunc(tt.own, func(prefix string) bool { return strings.HasPrefix(fields[0], prefix) }) {
				continue
			}
			if got := pinned(text, fields[0]); got != "" && got != fields[1] {
				t.Errorf("%s/go.mod has %s %s, %s/go.mod %s", tt.folder, fields[0], got, tt.heddles, fields[1])
			}
		}
	}
}

func readModule(t *testing.T, folder string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
