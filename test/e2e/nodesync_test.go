//go:build e2e && linux

package e2e

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/internal/kube"
)

// syncer writes the named Node through the real API server.
func (b *bed) syncer(t *testing.T, name string) *nodesync.Syncer {
	t.Helper()
	client, err := kube.NewClient(b.Kubeconfig(), "e2e")
	if err != nil {
		t.Fatal(err)
	}
	return nodesync.New(client, name)
}

// sync makes one round as the daemon does.
func syncNode(t *testing.T, s *nodesync.Syncer, want nodesync.Desired) nodesync.Result {
	t.Helper()
	node, err := s.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Sync(t.Context(), node, want)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func labels(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

// labels are the Node's without the one that newNode set.
func (b *bed) labels(t *testing.T, name string) map[string]string {
	t.Helper()
	got := b.node(t, name).Labels
	delete(got, corev1.LabelHostname)
	return got
}

func TestForeignLabelsAreYieldedKeyByKey(t *testing.T) {
	b := shared(t)
	b.newNode(t, "sync-conflict")
	s := b.syncer(t, "sync-conflict")
	// NVIDIA's feature discovery was here first, by way of its own writer.
	b.kubectl(t, "label", "node", "sync-conflict", "--field-manager=nfd-master",
		"nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/gpu.count=8")
	want := nodesync.Desired{Labels: labels("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3",
		"nvidia.com/gpu.count", "8", "heddle.dev/rdma.hca.count", "8")}

	r := syncNode(t, s, want)
	conflicts := []nodesync.Conflict{{
		Kind: "label", Key: "nvidia.com/gpu.product", Manager: "nfd-master",
		Want: "NVIDIA-H100-80GB-HBM3", Have: "NVIDIA-H100-80GB-HBM3-SHARED",
	}}
	if diff := cmp.Diff(conflicts, r.Conflicts); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	after := labels("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-SHARED",
		"nvidia.com/gpu.count", "8", "heddle.dev/rdma.hca.count", "8")
	if diff := cmp.Diff(after, b.labels(t, "sync-conflict")); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if again := syncNode(t, s, want); again.Writes != 0 {
		t.Errorf("a known conflict is written %d times a round", again.Writes)
	}

	// The shared key stays when the other leaves, and its own becomes ours.
	b.kubectl(t, "label", "node", "sync-conflict", "--field-manager=nfd-master",
		"nvidia.com/gpu.product-", "nvidia.com/gpu.count-")
	syncNode(t, s, want)
	if diff := cmp.Diff(want.Labels, b.labels(t, "sync-conflict")); diff != "" {
		t.Errorf("labels after the other left (-want +got):\n%s", diff)
	}

	// And it may take a key back; force is for those who want the fight.
	b.kubectl(t, "label", "node", "sync-conflict", "--field-manager=nfd-master", "--overwrite", "nvidia.com/gpu.count=4")
	if r := syncNode(t, s, want); len(r.Conflicts) != 1 || b.labels(t, "sync-conflict")["nvidia.com/gpu.count"] != "4" {
		t.Errorf("taken key: conflicts %v, labels %v", r.Conflicts, b.labels(t, "sync-conflict"))
	}
	want.Force = true
	if r := syncNode(t, s, want); len(r.Conflicts) != 0 || b.labels(t, "sync-conflict")["nvidia.com/gpu.count"] != "8" {
		t.Errorf("force: conflicts %v, labels %v", r.Conflicts, b.labels(t, "sync-conflict"))
	}
}

// TestOwnLabelsAreTakenBack: keys below heddle.dev that another writer changed, by
// whatever field manager, also while another label is left to its owner.
func TestOwnLabelsAreTakenBack(t *testing.T) {
	b := shared(t)
	b.newNode(t, "sync-own")
	s := b.syncer(t, "sync-own")
	want := nodesync.Desired{Labels: labels("heddle.dev/rdma.hca.count", "8", "nvidia.com/gpu.count", "8", "x", "ours")}
	syncNode(t, s, want)
	b.kubectl(t, "label", "node", "sync-own", "--overwrite", "--field-manager=curl", "heddle.dev/rdma.hca.count=evil", "x=theirs")
	b.kubectl(t, "label", "node", "sync-own", "--overwrite", "--field-manager=heddle-feature-discovery", "nvidia.com/gpu.count=evil")
	if r := syncNode(t, s, want); len(r.Conflicts) != 1 || r.Conflicts[0].Key != "x" {
		t.Errorf("conflicts %v", r.Conflicts)
	}
	got := b.labels(t, "sync-own")
	if got["heddle.dev/rdma.hca.count"] != "8" || got["nvidia.com/gpu.count"] != "8" || got["x"] != "theirs" {
		t.Errorf("labels %v", got)
	}
}
