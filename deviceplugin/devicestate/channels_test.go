package devicestate

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

const channel0 = "/dev/nvidia-caps-imex-channels/channel0"

// byRequest gives the node channel 0, for pods that ask for it.
func byRequest(r *rig) {
	before := r.change
	r.change = func(inv *inventory.Inventory) {
		before(inv)
		inv.Channels = &inventory.Channels{Allowed: "0,1", Nodes: map[int]*specs.DeviceNode{
			0: {Path: channel0, HostPath: "/dev/null", Permissions: "rw"},
		}}
	}
	r.restart()
}

func asksForChannels(text string) map[string]string {
	return map[string]string{wellknown.IMEXChannels: text}
}

// The spec of a container has the channels that its pod asks for now: an annotation that
// was wrong may be corrected, and the pod starts.
func TestChannelsByAnnotation(t *testing.T) {
	r := newRig(t)
	byRequest(r)
	want := asks{gpus: r.gpuIDs(0), hcas: r.deviceIDs("mlx5_0")}
	names := r.allocate(pod("a"), "main", want)
	err := r.Prepare(t.Context(), gpus, want[gpus])
	if err == nil || !strings.Contains(err.Error(), "the container waits for the API server") {
		t.Fatalf("before the pod is known: %v", err)
	}
	p := r.wants("a", asksForChannels("1"), corev1.Container{Name: "main"})
	for range 2 {
		if err := r.Prepare(t.Context(), gpus, want[gpus]); err == nil || !strings.Contains(err.Error(), "the node has no channel 1") {
			t.Fatalf("a channel that the node lacks: %v", err)
		}
	}
	if _, err := r.enter(names); err == nil {
		t.Error("the container could start")
	}
	events := []string{`default/a IMEXRejected: container main gets no IMEX channel: ` +
		`annotation heddle.dev/imex-channels is "1": the node has no channel 1; allowed on this node: 0,1`}
	if diff := cmp.Diff(events, r.specs.takeEvents()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got := r.Rejections(); len(got) != 1 || got[0].Kind != "imex" || got[0].Container != "main" {
		t.Errorf("rejections %+v", got)
	}
	for text, has := range map[string]bool{"0": true, "": false, "0,0": true} {
		if p.Annotations = asksForChannels(text); text == "" {
			p.Annotations = nil
		}
		r.start(want)
		if got := r.mustEnter(names); slices.Contains(got.Nodes, channel0) != has || !slices.Contains(got.Nodes, "rdma_cm") {
			t.Errorf("asks for %q: nodes %q", text, got.Nodes)
		}
		if got := r.Rejections(); len(got) > 0 {
			t.Errorf("asks for %q: rejections %+v", text, got)
		}
	}
}
