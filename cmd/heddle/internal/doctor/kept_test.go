package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/replay"
)

// Labels that discovery keeps while the GPU driver is absent are no problem.
func TestNodeWithoutADriver(t *testing.T) {
	m, err := replay.Load(machines + "h20-4nic.json")
	if err != nil {
		t.Fatal(err)
	}
	m.GPUs, m.Driver = []machine.GPU{}, machine.Driver{}
	m.Probes = []machine.Probe{{Name: "nvml", State: machine.ProbeAbsent, Reason: "the driver is not loaded"}}
	text, err := machine.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	node := h20Node()
	node.ManagedFields[0].FieldsV1 = labelFields("nvidia.com/gpu.product", "nvidia.com/gpu.count")
	run := func(since time.Time) string {
		node.Annotations = map[string]string{wellknown.DriverAbsentSince: since.Format(time.RFC3339)}
		out, _ := doctor(t, "--machine", file, "--node", "gpu-1", "--kubeconfig", serve(t, node, nil))
		return out
	}
	const gone = "- nvidia.com/gpu.count=8"
	if out := run(time.Now()); strings.Contains(out, gone) || !strings.Contains(out, "labels and taints of the GPUs are kept until 20") {
		t.Errorf("while they are kept:\n%s", out)
	}
	if out := run(time.Now().Add(-time.Hour)); !strings.Contains(out, gone) || strings.Contains(out, "are kept") {
		t.Errorf("when they are not kept any more:\n%s", out)
	}
}
