//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestPreloadGivesNoDisk: where the preloaded library writes is memory of the
// container's, and little of it, in the real container runtime.
func TestPreloadGivesNoDisk(t *testing.T) {
	r := sgpu(t)
	r.preloads(t)
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

// preloads has the rig's shares limited by a library.
func (r *rig) preloads(t *testing.T) {
	t.Helper()
	library := r.library(t)
	r.configure(t, sharedGPUs+"sgpu: {gpus: [0, 1], enforce: {memory: preload, compute: preload, preload: {library: "+library+"}}}\n")
	r.waitShares(t, 2*16, 200, 2*79)
}

// library is the path of one that does nothing.
func (r *rig) library(t *testing.T) string {
	t.Helper()
	library := filepath.Join(r.dir, "libvgpu.so")
	out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-nostdlib", "-o", library, "-x", "c", "/dev/null").CombinedOutput()
	if err != nil {
		t.Fatalf("build of a library: %v\n%s", err, out)
	}
	return library
}

// TestPodHidesNoLimit: a link in a volume leads a mount of the pod to where heddle's
// is, or the pod mounts a file into heddle's directory. The runtime makes it last, since its
// path is longer.
func TestPodHidesNoLimit(t *testing.T) {
	r := sgpu(t)
	r.preloads(t)
	volume, err := os.MkdirTemp(r.dir, "volume") //nolint:usetesting // The node has r.dir under its path.
	empty := filepath.Join(volume, "empty")
	err = errors.Join(err, os.WriteFile(empty, nil, 0o600))
	if err = errors.Join(err, os.Symlink("/etc", filepath.Join(volume, "link"))); err != nil {
		t.Fatal(err)
	}
	// A region that the pod's user prepared, whose limits the library would take.
	region := filepath.Join(volume, "region")
	err = errors.Join(os.Mkdir(region, 0o755), os.WriteFile(filepath.Join(region, "region.cache"), []byte("limits"), 0o600))
	if err = errors.Join(err, os.Symlink("/usr/local/vgpu", filepath.Join(volume, "vgpu"))); err != nil {
		t.Fatal(err)
	}
	mounts := func(name, at, source, path string) *corev1.Pod {
		p := r.pod(name, box{more: share(30, 4)})
		for i, source := range []string{volume, source} {
			volume := corev1.Volume{Name: fmt.Sprint("v", i)}
			volume.HostPath = &corev1.HostPathVolumeSource{Path: source}
			p.Spec.Volumes = append(p.Spec.Volumes, volume)
		}
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: "v0", MountPath: at}, corev1.VolumeMount{Name: "v1", MountPath: path})
		return p
	}
	hides := func(name, path string) *corev1.Pod { return mounts(name, "/x", empty, path) }
	r.create(t, hides("hides", "/x/link/ld.so.preload"))
	r.waitWaiting(t, "hides", "a volume of the pod, or a link in it, hides /etc/ld.so.preload", 45*time.Second)
	r.create(t, mounts("prepared", "/x", filepath.Join(region, "region.cache"), "/usr/local/vgpu/region/region.cache"))
	r.waitWaiting(t, "prepared", "hides /usr/local/vgpu/region", 45*time.Second)
	r.create(t, mounts("linked", "/a/b/c/d", region, "/a/b/c/d/vgpu/region"))
	r.waitWaiting(t, "linked", "hides /usr/local/vgpu/region", 45*time.Second)
	r.remove(t, "prepared", "linked")
	// Beside heddle's mounts, or at the very path, where heddle's replaces it.
	r.run(t, hides("beside", "/x/link/other"))
	r.run(t, hides("replaced", "/etc/ld.so.preload"))
	r.remove(t, "hides")
	r.count(t)
}
