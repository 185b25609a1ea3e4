//go:build e2e && linux

package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPreloadGivesNoDisk: where the preloaded library writes is memory of the
// container's, and little of it, in the real container runtime. No other container of the
// pod has it, and a process that comes by kubectl exec has it, and the limits.
func TestPreloadGivesNoDisk(t *testing.T) {
	r := sgpu(t)
	r.preloads(t)
	r.configMap(t, "words", map[string]string{
		"CUDA_DEVICE_MEMORY_LIMIT_0": "80000m", "CUDA_DEVICE_SM_LIMIT": "100", "CUDA_DISABLE_CONTROL": "true",
	})
	app := box{more: share(30, 4), envFrom: "words", env: map[string]string{
		"CUDA_DEVICE_SM_LIMIT_0": "100", "CUDA_REDIRECT": "/host/gpus/other.so",
	}}
	before, side := box{name: "before", more: share(20, 2), args: []string{"once"}}, box{name: "side", more: share(10, 1), sidecar: true}
	r.run(t, r.pod("consumer", app, before, side))
	const region, lock = "/usr/local/vgpu/region", "/tmp/vgpulock"
	const most = 16 << 20
	room := map[string]int64{region: most, lock: most}
	for container, want := range map[string]map[string]string{
		"app": {
			"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_SM_LIMIT_0": "30", "CUDA_DEVICE_SM_LIMIT": "30",
			"CUDA_DISABLE_CONTROL": "false", "CUDA_REDIRECT": "",
		},
		"before": {"CUDA_DEVICE_MEMORY_LIMIT_0": "2048m", "CUDA_DEVICE_SM_LIMIT_0": "20", "CUDA_REDIRECT": ""},
		"side":   {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m", "CUDA_DEVICE_SM_LIMIT_0": "10", "CUDA_REDIRECT": ""},
	} {
		s := r.sees(t, "consumer", container)
		owns(t, container, s.Env, want)
		if diff := cmp.Diff(room, s.Room); diff != "" {
			t.Errorf("container %s can write (-want +got):\n%s", container, diff)
		}
		if len(s.Found) > 0 {
			t.Errorf("container %s found %v, which it shares with another one", container, s.Found)
		}
		if container == "before" {
			continue
		}
		exec := r.ask(t, "consumer", container)
		owns(t, "kubectl exec in "+container, exec.Env, want)
		if diff := cmp.Diff(map[string][]string{region: {"mark"}, lock: {"mark"}}, exec.Found); diff != "" {
			t.Errorf("kubectl exec in %s, files of the container (-want +got):\n%s", container, diff)
		}
	}
	r.count(t)
}

// owns fails the test unless a process has these variables. Of several of one name it
// reports the first, as getenv does.
func owns(t *testing.T, process string, env, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got, set := env[key]; !set || got != value {
			t.Errorf("%s has %s=%q (set: %t), want %q", process, key, got, set, value)
		}
	}
}

// configMap creates a ConfigMap and deletes it after the test.
func (r *rig) configMap(t *testing.T, name string, data map[string]string) {
	t.Helper()
	api := r.client.CoreV1().ConfigMaps(namespace)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	if _, err := api.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// preloads has the rig's shares limited by a library.
func (r *rig) preloads(t *testing.T) {
	t.Helper()
	library := r.library(t)
	r.configure(t, sharedGPUs+"sgpu: {gpus: [0, 1], enforce: {memory: preload, compute: preload, preloadLibrary: "+library+"}}\n")
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

// TestPodHidesNoLimit: a link in a volume leads a mount of the pod to where
// heddle's is, or the pod mounts a file into heddle's directory. The runtime makes it last,
// since its path is longer. At the very path heddle's replaces it.
func TestPodHidesNoLimit(t *testing.T) {
	r := sgpu(t)
	r.preloads(t)
	hides := r.hidesNoLimit(t)
	r.run(t, hides("replaced", "/etc/ld.so.preload"))
	r.count(t)
}

// hidesNoLimit has pods with such mounts, and returns one that mounts an empty file at a path.
func (r *rig) hidesNoLimit(t *testing.T) (hides func(name, path string) *corev1.Pod) {
	t.Helper()
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
	hides = func(name, path string) *corev1.Pod { return mounts(name, "/x", empty, path) }
	r.create(t, hides("hides", "/x/link/ld.so.preload"))
	r.waitWaiting(t, "hides", "a volume of the pod, or a link in it, hides /etc/ld.so.preload")
	r.create(t, mounts("prepared", "/x", filepath.Join(region, "region.cache"), "/usr/local/vgpu/region/region.cache"))
	r.waitWaiting(t, "prepared", "hides /usr/local/vgpu/region")
	r.create(t, mounts("linked", "/a/b/c/d", region, "/a/b/c/d/vgpu/region"))
	r.waitWaiting(t, "linked", "hides /usr/local/vgpu/region")
	r.remove(t, "prepared", "linked")
	// Beside heddle's mounts.
	r.run(t, hides("beside", "/x/link/other"))
	r.remove(t, "hides")
	return hides
}
