//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/topo/worker"
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

// TestFullestTopologyIsValid applies the largest report that a worker makes.
func TestFullestTopologyIsValid(t *testing.T) {
	b := shared(t)
	b.topologyCRD(t)
	const node = "topo-full"
	b.newNode(t, node)
	client, err := kube.NewClient(b.Kubeconfig(), "e2e")
	if err != nil {
		t.Fatal(err)
	}
	spec := v1alpha1.NodeTopologySpec{
		NVLinkDomain: strings.Repeat("d", 128), Path: []string{"a", "b", "c", "d", "e", "f", "g", "h"}, PathSource: v1alpha1.SourceStatic,
	}
	for i := range 16 {
		spec.Accelerators = append(spec.Accelerators, v1alpha1.Accelerator{Product: fmt.Sprint("gpu-", i), Count: 1024})
	}
	for i := range 128 {
		spec.Rails = append(spec.Rails, v1alpha1.Rail{
			Rail: int32(i), Plane: int32(i % 16), HCA: "mlx5", ID: fmt.Sprint("0000:", i), Role: "fabric", Port: 255,
			GPUs: strings.Split(strings.Repeat("GPU-87164236-ab4c-4ca6-9341-f921ac72ba79,", 16)[:16*41-1], ","), LinkState: v1alpha1.LinkActive,
			Switch:     &v1alpha1.Switch{ID: strings.Repeat("i", 128), Name: strings.Repeat("ä", 128)},
			SwitchPort: strings.Repeat("p", 128), Source: v1alpha1.SourceLLDP, Confidence: 100, RateGbps: 1600,
			Since: new(metav1.NewTime(time.Unix(1_700_000_000, 0).UTC())),
		})
	}
	for i := range 2048 {
		spec.Uplinks = append(spec.Uplinks, v1alpha1.Uplink{
			Leaf: "2c5eab0300c26480", Port: int32(i % 256), Peer: "2c5eab0300c26280", PeerName: strings.Repeat("n", 64), PeerPort: 1,
		})
	}
	for i := range 64 {
		spec.Skipped = append(spec.Skipped, v1alpha1.Skipped{Name: fmt.Sprint(i), Reason: strings.Repeat("r", 256)})
	}
	p := worker.NewPublisher(client, node)
	if nt, err := p.Load(t.Context()); nt != nil || err != nil {
		t.Errorf("before: %v, %v", nt, err)
	}
	if nt, err := p.Beat(t.Context(), time.Now()); nt != nil || err != nil {
		t.Errorf("heartbeat of nothing: %v, %v", nt, err)
	}
	owner, err := p.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nt, err := p.Apply(t.Context(), owner.UID, &spec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec, nt.Spec); diff != "" {
		t.Errorf("stored (-sent +got):\n%s", diff)
	}
	// What is no longer applied goes away.
	nt, err = p.Apply(t.Context(), owner.UID, &v1alpha1.NodeTopologySpec{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v1alpha1.NodeTopologySpec{}, nt.Spec, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("emptied (-sent +got):\n%s", diff)
	}
}
