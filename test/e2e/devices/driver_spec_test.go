//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// TestDriverSpecFollowsTheNode: nvidia-uvm, a socket and the IMEX channels come
// after the plugin, and the socket goes again. Containers that are created then
// have what there is, and the file is left alone while nothing changes. Then pods ask for
// their channels.
func TestDriverSpecFollowsTheNode(t *testing.T) {
	beside(t)
	r, n := newDriverRig(t, "spec")
	uvm := filepath.Join(n.Root, "dev/nvidia-uvm")
	if err := os.Remove(uvm); err != nil {
		t.Fatal(err)
	}
	r.plugin.args = append(r.plugin.args, "--imex-channels", "0")
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitRegistered(t)
	waitProblem := func(want bool) {
		t.Helper()
		eventually(t, 20*time.Second, func() string {
			out, err := r.get(t.Context(), "/v1/bindings")
			if err != nil {
				return err.Error()
			}
			if strings.Contains(out, "run nvidia-modprobe -u -c=0") != want {
				return "problems: " + out
			}
			return ""
		})
	}
	opens := func(pod string) []string {
		t.Helper()
		r.run(t, r.pod(pod, box{gpus: 1}))
		return r.report(t, pod, "app").opens()
	}
	waitProblem(true)
	if got := opens("before"); slices.Contains(got, "/dev/nvidia-uvm") || !slices.Contains(got, "/dev/nvidiactl") {
		t.Errorf("before nvidia-uvm comes, a pod opens %q", got)
	}

	majors, err := freeMajors(1)
	if err != nil {
		t.Fatal(err)
	}
	const channels = "nvidia-caps-imex-channels"
	socket := filepath.Join(n.Root, "run/nvidia-persistenced/socket")
	for _, dir := range []string{filepath.Join(n.Root, "dev", channels), filepath.Dir(socket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.mknod(t, channels+"/channel0", majors[0], 100)
	n.mknod(t, channels+"/channel1", majors[0], 101)
	n.mknod(t, "nvidia-uvm", majors[0], 102)
	waitProblem(false)
	got := opens("with")
	for _, node := range []string{"/dev/nvidia-uvm", "/dev/" + channels + "/channel0"} {
		if !slices.Contains(got, node) {
			t.Errorf("after %s came, a pod opens %q", node, got)
		}
	}
	if slices.Contains(got, "/dev/"+channels+"/channel1") {
		t.Errorf("a pod opens %q, which has a channel that --imex-channels does not name", got)
	}

	spec := r.NodeDir(filepath.Join("/run/cdi", cdi.DriverFile))
	mounts := func() bool {
		t.Helper()
		text, err := os.ReadFile(spec)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), socket)
	}
	if !mounts() {
		t.Errorf("the spec does not mount %s", socket)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() string {
		if mounts() {
			return "the spec mounts a socket that is gone"
		}
		return ""
	})
	before, err := os.Stat(spec)
	if err != nil {
		t.Fatal(err)
	}
	opens("after")
	after, err := os.Stat(spec)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("nothing changed, and the spec was written again: %v", err)
	}
	if lines := r.plugin.log.grep("CDI spec written"); len(lines) > 4 {
		t.Errorf("written %d times: %q", len(lines), lines)
	}
	r.channelsByRequest(t, "/dev/"+channels+"/channel0", "with")
}

// channelsByRequest has pods ask for channel 0, which all had until now: one that asks
// opens it, one that does not has none, nor has one that had it once it starts again, and
// one that asks for another does not start until its annotation is corrected.
func (r *rig) channelsByRequest(t *testing.T, channel, had string) {
	t.Helper()
	r.plugin.args = append(r.plugin.args, "--imex-request", "annotation")
	r.plugin.restart(t)
	pod := func(name, channels string) *corev1.Pod {
		p := r.pod(name, box{gpus: 1})
		if channels != "" {
			p.Annotations = map[string]string{wellknown.IMEXChannels: channels}
		}
		return p
	}
	opens := func(pod string, want bool) {
		t.Helper()
		if got := r.report(t, pod, "app").opens(); slices.Contains(got, channel) != want {
			t.Errorf("pod %s opens %q; %s among them should be %v", pod, got, channel, want)
		}
	}
	r.run(t, pod("asks", "0"))
	opens("asks", true)
	r.run(t, pod("silent", ""))
	opens("silent", false)
	r.stopContainer(t, had, "app")
	r.waitRestart(t, had, "app", 1, waitStart)
	opens(had, false)

	r.create(t, pod("errs", "1"))
	const reason = `annotation heddle.dev/imex-channels is "1": channel 1 is not allowed; allowed on this node: 0`
	r.waitWaiting(t, "errs", reason, waitStart)
	r.waitEvent(t, "errs", wellknown.EventIMEXRejected, reason, waitStart)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"0"}}}`, wellknown.IMEXChannels)
	_, err := r.client.CoreV1().Pods(namespace).Patch(t.Context(), "errs", types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.waitReady(t, "errs", waitStart)
	opens("errs", true)
}
