package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/host"
)

// Labels that discovery keeps while the GPU driver is absent are no problem.
func TestNodeWithoutADriver(t *testing.T) {
	m, err := host.LoadDump(machines + "h20-4nic.json")
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

func TestNodeWithReleasedGPUs(t *testing.T) {
	node := h20Node()
	for _, tt := range []struct {
		name, annotation, want string
		there                  bool
	}{
		{"all", `{"until":"2999-01-01T00:00:00Z"}`, "released until 2999-01-01T00:00:00Z; no new pod gets any of its GPUs", true},
		{"one", `{"until":"2999-01-01T00:00:00Z","gpus":["GPU-a"]}`, "no new pod gets GPU-a", true},
		{"its end", `{"until":"2026-01-01T00:00:00Z"}`, "released", false},
		{"a typo", `10m`, "its GPUs are not released: annotation heddle.dev/gpu-release", true},
	} {
		node.Annotations = map[string]string{wellknown.GPURelease: tt.annotation}
		out, _ := doctor(t, "--machine", machines+"h20-4nic.json", "--node", "gpu-1", "--kubeconfig", serve(t, node, nil))
		if strings.Contains(out, tt.want) != tt.there {
			t.Errorf("%s: %q is there %t in\n%s", tt.name, tt.want, !tt.there, out)
		}
	}
}
