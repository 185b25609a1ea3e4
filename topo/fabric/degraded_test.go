package fabric_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// Degraded links are findings with the rail of their HCA; they move no node and change no status, so that the bytes of
// /node_group stay.
func TestDegradedLinks(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	link := func(hca, id string, port int32, what string) v1alpha1.DegradedLink {
		return v1alpha1.DegradedLink{
			HCA: hca, ID: id, Port: port, What: what, Value: "v", Limit: "l", Source: "s", Since: metav1.NewTime(since),
		}
	}
	levels := fabric.Preset(fabric.ModeAuto, 0)
	tree := func(links ...v1alpha1.DegradedLink) *fabric.Snapshot {
		b := fabric.New(levels)
		for _, name := range []string{"a", "b", "c"} {
			spec := onto("1", "2", "3", "4")
			if name == "b" {
				spec.DegradedLinks = links
			}
			b.Put(node(name, spec))
		}
		return b.Snapshot(start)
	}
	healthy := tree()
	far := link("mlx5_2", "0000:02:00.0", 1, "link-downs")
	far.End = v1alpha1.SwitchEnd
	got := tree(
		link("mlx5_2", "0000:02:00.0", 1, "symbol-errors"), link("mlx5_2", "0000:02:00.0", 0, "pcie-width"),
		link("", "GPU-1", 0, "pcie-width"), far,
	)
	finding := func(hca, id string, port, rail int32, what string) fabric.Finding {
		return fabric.Finding{
			Kind: fabric.Degraded, Node: "b", HCA: hca, ID: id, Port: port, Rail: rail, What: what, Value: "v", Limit: "l (s)",
			Since: since,
		}
	}
	atSwitch := finding("mlx5_2", "0000:02:00.0", 1, 2, "link-downs")
	atSwitch.End = v1alpha1.SwitchEnd
	want := []fabric.Finding{
		finding("", "GPU-1", 0, 0, "pcie-width"), finding("mlx5_2", "0000:02:00.0", 0, 2, "pcie-width"),
		finding("mlx5_2", "0000:02:00.0", 1, 2, "symbol-errors"), atSwitch,
	}
	if diff := cmp.Diff(want, got.Findings()); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	var before, after strings.Builder
	if err := errors.Join(healthy.Write(&before), got.Write(&after)); err != nil || before.String() != after.String() {
		t.Errorf("GET /node_group, %v (-healthy +degraded):\n%s", err, cmp.Diff(before.String(), after.String()))
	}
}
