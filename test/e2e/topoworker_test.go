//go:build e2e && linux

package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// topologyCRD installs the chart's definition of NodeTopology.
func (b *bed) topologyCRD(t *testing.T) {
	t.Helper()
	const name = "topology.heddle.dev_nodetopologies.yaml"
	text, err := os.ReadFile(filepath.Join(b.installer.Root, "deploy/helm/heddle/crds", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), string(text)); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "wait", "crd/nodetopologies.topology.heddle.dev", "--for=condition=Established", "--timeout=3m")
}
