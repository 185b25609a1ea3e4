//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// regionOf is where a container has the region of preload.
const regionOf = "/usr/local/vgpu/region"

// TestPodSpecAsksForMore: what a pod gets by its spec beside devices, row by row of the table in
// docs/concepts/enforcers.md: of a GPU that another container has, of that one's region, and of the host.
func TestPodSpecAsksForMore(t *testing.T) {
	r := sgpu(t)
	r.preloads(t)
	nodes := r.nodesBelowDev(t)

	consumer := r.pod("consumer", box{more: share(30, 4)})
	together := r.pod("one-pid-namespace", box{more: share(30, 4)})
	together.Spec.ShareProcessNamespace = new(true)
	hostPID := r.pod("host-pid", box{})
	hostPID.Spec.HostPID = true
	for _, p := range []*corev1.Pod{together, hostPID} {
		besides(p, box{name: "root"}, box{name: "user"})
		p.Spec.Containers[2].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1000))}
	}
	privileged := r.pod("privileged", box{})
	privileged.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	hostPath := r.pod("host-path", box{more: share(10, 1)})
	for at, path := range map[string]string{"/host/dev": "/dev", "/host/state": r.stateDir()} {
		volume := corev1.Volume{Name: filepath.Base(at)}
		volume.HostPath = &corev1.HostPathVolumeSource{Path: path}
		hostPath.Spec.Volumes = append(hostPath.Spec.Volumes, volume)
		c := &hostPath.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: at})
	}
	pods := []*corev1.Pod{consumer, together, hostPID, privileged, hostPath}
	r.create(t, pods...)
	for _, p := range pods {
		r.waitReady(t, p.Name)
	}
	r.debug(t, consumer.Name)

	// The debugging container is in the first one's process namespace.
	theirs, of := r.firstProcess(t, together.Name), r.firstProcess(t, consumer.Name)
	for _, tt := range []struct {
		pod, container, pid, victim string
		reaches                     bool
	}{
		{together.Name, "root", theirs.inPod, together.Name, true},
		{together.Name, "user", theirs.inPod, together.Name, false},
		{hostPID.Name, "root", of.onHost, consumer.Name, true},
		{hostPID.Name, "user", of.onHost, consumer.Name, false},
		{consumer.Name, "debug", "1", consumer.Name, true},
	} {
		r.reaches(t, tt.pod, tt.container, "/proc/"+tt.pid+"/root", tt.victim, tt.reaches)
	}

	count := func(answers map[string]string) map[string]int {
		n := map[string]int{}
		for _, answer := range answers {
			n[answer]++
		}
		return n
	}
	all := len(r.machine(t).GPUs)
	for _, tt := range []struct {
		pod, below string
		want       map[string]int
	}{
		{consumer.Name, "", map[string]int{}},
		{privileged.Name, "", map[string]int{"ENXIO": all}},
		{hostPath.Name, "/host", map[string]int{"EPERM": all - 1, "ENXIO": 1}}, // It has a share of one.
	} {
		got := count(r.answers(t, tt.pod, "app", "open", tt.below+nodes+"/GPU-*"))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s, nodes of GPUs below the node's /dev (-want +got):\n%s", tt.pod, diff)
		}
	}
	// heddle's directory has what the runtime runs as root.
	r.answers(t, hostPath.Name, "app", "write", "/host/state/written")
	written := filepath.Join(r.stateDir(), "written")
	if err := os.Remove(written); err != nil {
		t.Errorf("a pod with heddle's directory wrote nothing there: %v", err)
	}
	r.count(t)
}

// reaches fails the test unless a container, by the root directory of another pod's, can write into
// its region or not, and can open no GPU.
func (r *rig) reaches(t *testing.T, pod, container, root, victim string, want bool) {
	t.Helper()
	mark := fmt.Sprintf("by-%s-%s", pod, container)
	wanted := map[string]string{root + regionOf + "/" + mark: "EACCES"}
	if want {
		wanted = map[string]string{root + regionOf + "/" + mark: "ok", root + "/dev/nvidia*": "EPERM"}
	}
	got := r.answers(t, pod, container, "write", root+regionOf+"/"+mark)
	for _, answer := range r.answers(t, pod, container, "open", root+"/dev/nvidia*") {
		got[root+"/dev/nvidia*"] = answer // The one that the other container has.
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("%s/%s, the container of %s by /proc (-want +got):\n%s", pod, container, victim, diff)
	}
	if there := slices.Contains(r.ask(t, victim, "app").Found[regionOf], mark); there != want {
		t.Errorf("%s/%s wrote into the region of %s: %t", pod, container, victim, there)
	}
	if gpus := r.sees(t, pod, container).GPUs; len(gpus) > 0 {
		t.Errorf("%s/%s can open %v", pod, container, gpus)
	}
}

// answers has a container open or write paths, and returns the answers by path.
func (r *rig) answers(t *testing.T, pod, container, mode, path string) map[string]string {
	t.Helper()
	out, err := r.Kubectl(t.Context(), "exec", pod, "-c", container, "--", "/report", mode, path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseReport([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	return got.Open
}

// nodesBelowDev shows the nodes of the GPUs below the node's /dev, and returns where.
func (r *rig) nodesBelowDev(t *testing.T) string {
	t.Helper()
	const dir = "/dev/heddle-gpus"
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	r.onNode(t, "mount --bind "+filepath.Join(r.dir, "gpus")+" "+dir)
	t.Cleanup(func() { r.onNode(t, "umount "+dir) })
	return dir
}

// debug adds a container to a running pod, as kubectl debug --target=app does.
func (r *rig) debug(t *testing.T, pod string) {
	t.Helper()
	p, c := r.getPod(t, pod), box{name: "debug"}.container()
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name, Image: c.Image, VolumeMounts: c.VolumeMounts},
		TargetContainerName:      "app",
	}}
	if _, err := r.client.CoreV1().Pods(namespace).UpdateEphemeralContainers(t.Context(), pod, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.waitPod(t, pod, func(p *corev1.Pod) string {
		for _, s := range p.Status.EphemeralContainerStatuses {
			if s.State.Running != nil {
				return ""
			}
		}
		return fmt.Sprintf("its debugging containers are %+v", p.Status.EphemeralContainerStatuses)
	})
}

// pids are a process's number on the host, and in its pod.
type pids struct{ onHost, inPod string }

// firstProcess is that of a pod's container app.
func (r *rig) firstProcess(t *testing.T, pod string) pids {
	t.Helper()
	id := strings.TrimPrefix(status(r.getPod(t, pod), "app").ContainerID, "containerd://")
	for line := range strings.Lines(r.onNode(t, "ctr tasks ls")) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != id {
			continue
		}
		text, err := os.ReadFile("/proc/" + f[1] + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
				all := strings.Fields(numbers)
				return pids{onHost: f[1], inPod: all[len(all)-1]}
			}
		}
	}
	t.Fatalf("containerd runs no process of %s", pod)
	return pids{}
}
