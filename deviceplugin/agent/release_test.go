package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/discovery/host"
)

// ask writes a request to the Node as an operator does; the zero one takes it away.
func (r *rig) ask(request release.Request) {
	r.t.Helper()
	text, err := json.Marshal(request)
	if err != nil {
		r.t.Fatal(err)
	}
	r.api.EditNode(func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[wellknown.GPURelease] = string(text)
		if request.Until.IsZero() {
			delete(n.Annotations, wellknown.GPURelease)
		}
	})
}

// waitStatus waits for an answer.
func (r *rig) waitStatus(what string, want func(release.Status) bool) {
	r.t.Helper()
	r.api.Wait(r.t, what, func() bool {
		var status release.Status
		text := r.api.Node.Annotations[wellknown.GPUReleaseStatus]
		return json.Unmarshal([]byte(text), &status) == nil && want(status)
	})
}

func (r *rig) waitNotice(text string) {
	r.t.Helper()
	r.api.Wait(r.t, text, func() bool {
		return slices.ContainsFunc(r.api.notices, func(one string) bool { return strings.Contains(one, text) })
	})
}

// hostProc is a procfs of the host with one process that has a GPU open.
func hostProc(t *testing.T) cgroup.Proc {
	t.Helper()
	p := cgroup.Proc{Root: t.TempDir()}
	for _, dir := range []string{"self/ns", "77/fd"} {
		if err := os.MkdirAll(filepath.Join(p.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"self/ns/pid": "pid:[4026531836]", "77/fd/3": "/dev/nvidia0"} {
		if err := os.Symlink(target, filepath.Join(p.Root, link)); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestRelease(t *testing.T) {
	proc := hostProc(t)
	r := newRig(t, "dgx-h100", func(o *Options) { o.Processes = proc }).run()
	r.list(gpus, 8, 0)
	held := r.admit("train", map[string]int{gpus: 2})[gpus]
	r.start("train")

	request := release.Request{Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}
	r.ask(request)
	state := r.list(gpus, 0, 8)
	for _, id := range held {
		if !slices.Contains(state.Unhealthy, id) {
			t.Errorf("%s, which a pod holds, is not listed any more: %+v", id, state)
		}
	}
	r.waitStatus("the holders", func(s release.Status) bool {
		return s.Released && s.Request.Equal(request) && len(s.Pods) == 1 && s.Pods[0].Name == "train" &&
			len(s.Pods[0].GPUs) == 2 && len(s.Processes) == 1 && s.Processes[0].PID == 77 && s.Unseen == ""
	})
	r.waitNotice("GPUsReleased the driver of the GPUs is released until")

	// The next process knows of it without an API server.
	saved, before, err := LoadRelease(r.options.StateDir)
	if err != nil || saved == nil || !saved.Request.Equal(request) || len(before.GPUs) != 8 {
		t.Fatalf("saved %+v, %v", saved, err)
	}
	r.options.Released = saved.Request
	r.again(t)
	r.list(gpus, 0, 8)

	r.ask(release.Request{})
	r.list(gpus, 8, 0)
	r.api.Wait(t, "the answer to go", func() bool { return r.api.Node.Annotations[wellknown.GPUReleaseStatus] == "" })
	r.waitNotice("GPUReleaseEnded the release of the GPUs has ended")
	if saved, _, err := LoadRelease(r.options.StateDir); saved != nil || err != nil {
		t.Errorf("after the release, %+v and %v are saved", saved, err)
	}
}

func TestReleaseOfOneGPU(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	one := r.source.get().GPUs[3].UUID
	r.ask(release.Request{Until: time.Now().Add(time.Hour), GPUs: []string{one}})
	if state := r.list(gpus, 7, 1); !slices.Equal(state.Unhealthy, []string{one}) {
		t.Errorf("unhealthy %q, want %q", state.Unhealthy, one)
	}
	r.waitStatus("why no process is seen", func(s release.Status) bool {
		return s.Released && strings.Contains(s.Unseen, "hostPID")
	})
	// By itself, at its end.
	r.ask(release.Request{Until: time.Now().Add(-time.Second), GPUs: []string{one}})
	r.list(gpus, 8, 0)
}

func TestReleaseThatDoesNotParse(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.api.EditNode(func(n *corev1.Node) {
		n.Annotations = map[string]string{wellknown.GPURelease: "10m"}
	})
	r.waitNotice("GPUReleaseInvalid annotation heddle.dev/gpu-release")
	r.list(gpus, 8, 0)
}

// GPUs are not released as long as the scan has a session.
func TestReleaseWaitsForTheSession(t *testing.T) {
	drivers := host.NewRelease()
	r := newRig(t, "dgx-h100", func(o *Options) { o.Release = drivers }).run()
	r.list(gpus, 8, 0)
	r.ask(release.Request{Until: time.Now().Add(time.Hour)})
	r.list(gpus, 0, 8)
	r.waitStatus("the session", func(s release.Status) bool {
		return !s.Released && strings.Contains(s.Message, "session with the driver is still open")
	})
	if !drivers.Active() {
		t.Error("the driver is not released")
	}
}
