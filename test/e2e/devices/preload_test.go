//go:build e2e && linux

package devices

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPreloadGivesNoDisk: where the preloaded library writes is memory of the
// container's, and little of it, in the real container runtime.
func TestPreloadGivesNoDisk(t *testing.T) {
	r := sgpu(t)
	library := filepath.Join(r.dir, "libvgpu.so")
	out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-nostdlib", "-o", library, "-x", "c", "/dev/null").CombinedOutput()
	if err != nil {
		t.Fatalf("build of a library: %v\n%s", err, out)
	}
	r.configure(t, sharedGPUs+"sgpu: {gpus: [0, 1], enforce: {memory: preload, compute: preload, preload: {library: "+library+"}}}\n")
	r.waitShares(t, 2*16, 200, 2*79)
	r.run(t, r.pod("consumer", box{more: share(30, 4)}))
	s := r.sees(t, "consumer", "app")
	if got := s.Env["CUDA_DEVICE_MEMORY_LIMIT_0"]; got != "4096m" {
		t.Fatalf("the library's limit is %q", got)
	}
	const most = 16 << 20
	want := map[string]int64{"/usr/local/vgpu/region": most, "/tmp/vgpulock": most}
	if got := fmt.Sprint(s.Room); got != fmt.Sprint(want) {
		t.Errorf("a container can write %s, want %v", got, want)
	}
	r.count(t)
}
