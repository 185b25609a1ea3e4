package chart

import (
	"strings"
	"testing"
)

// notes are what helm prints after an installation with these values.
func notes(t *testing.T, set string) string {
	t.Helper()
	out, err := helm(t, "install", "x", chartDir, "-n", namespace, "--dry-run=client", "--set", "gpuDevice.enabled=true,"+set)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(out, "NOTES:")
	return text
}

// TestNotesReportWhatIsNotEnforced: helm warns where GPUs are shared and no enforcer
// is on.
func TestNotesReportWhatIsNotEnforced(t *testing.T) {
	const warning, doctor = "shares of GPUs are counted and NOT ENFORCED", "heddle doctor --node NODE"
	for _, tt := range []struct{ name, set, want, not string }{
		{"a default installation with shares", "config.cluster.mode=sgpu", warning, doctor},
		{"on some nodes", "config.nodes[0].nodeSelector.a=b,config.nodes[0].mode=sgpu", warning, doctor},
		{"on every node", "gpuDevice.sGPUHybridMode=true", warning, doctor},
		{"MPS", "config.cluster.mode=sgpu,gpuDevice.mps=true", doctor, warning},
		{"a library", "config.cluster.mode=sgpu,config.cluster.sgpu.enforce.preloadLibrary=/opt/libvgpu.so", doctor, warning},
		{"a library of an image", "config.cluster.mode=sgpu,gpuDevice.preload.image=localhost/vgpu:1", doctor, warning},
		{"eviction", "config.cluster.mode=sgpu,config.cluster.sgpu.enforce.memory=evict,gpuDevice.usageMetrics=true", doctor, warning},
		{"exclusive GPUs", "config.cluster.mode=native", "ds/heddle-device-plugin", warning},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if text := notes(t, tt.set); !strings.Contains(text, tt.want) || strings.Contains(text, tt.not) {
				t.Errorf("notes:\n%s", text)
			}
		})
	}
}
