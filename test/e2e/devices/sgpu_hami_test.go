//go:build e2e && linux

package devices

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

// hamiConfig is a node for HAMi as docs/hami.md has it.
const hamiConfig = sharedGPUs + "sgpu: {unscheduled: reject, rejectedFor: 0s, hami: {enabled: true}}\n"

// TestHAMiSide drives the node by exactly what unmodified HAMi wrote, version by version:
// the webhook's part of the pod, the decision, the node lock, the Binding.
func TestHAMiSide(t *testing.T) {
	// HAMi is on from the start: a node that counted vmemory before goes on counting it, and its
	// kubelet takes no vmemory with a unit (docs/hami.md).
	r := newRig(t, options{name: "hami", config: hamiConfig, kwok: true})
	locks := r.locks(t)
	r.waitHealthy(t, 8)
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *rig, *lockLog)
	}{
		{"cards", hamiNode},
		{"documented example", hamiExample},
		{hamirecord.V26, hamiRecorded},
		{hamirecord.V210, hamiRecorded},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, r, locks) })
	}
}

// hamiNode: the Node's annotation, whole. It is the recorded one, of a node without pods.
func hamiNode(t *testing.T, r *rig, _ *lockLog) {
	recorded, err := hami.ParseNodeGPUs(r.replay(t, hamirecord.V210).Node[apinames.HAMiGPUs])
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]hami.NodeGPU{}
	for _, g := range recorded {
		g.AvailableDevCount, g.AvailableCompute, g.AvailableVRam, g.QoSPolicy = g.TotalDevCount, g.TotalCompute, g.TotalVRam, ""
		want[g.UUID] = g
	}
	// What is left is written at most every 30 s, and earlier tests took some.
	eventually(t, func() string { return cmp.Diff(want, r.hamiGPUs(t)) })
}

// hamiExample: the documented pod gets the card that HAMi chose.
func hamiExample(t *testing.T, r *rig, locks *lockLog) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "examples", "sgpu-pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var p corev1.Pod
	if err := yaml.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	if p.Name != "sample-pod" || p.Spec.SchedulerName != hamiScheduler {
		t.Fatalf("the example is pod %s of scheduler %s", p.Name, p.Spec.SchedulerName)
	}
	// Its image is not at hand, and does not report what it sees.
	ours := r.pod(p.Name, box{})
	c := &p.Spec.Containers[0]
	c.Image, c.Command, c.Args, c.VolumeMounts = reportImage, nil, nil, ours.Spec.Containers[0].VolumeMounts
	p.Namespace, p.Spec.Volumes, p.Spec.TerminationGracePeriodSeconds = namespace, ours.Spec.Volumes, new(int64(1))
	h := r.replay(t, hamirecord.V210)
	recorded := h.Pod(t, p.Name)
	if diff := cmp.Diff(recorded.Admitted().Spec.Containers[0].Resources.Limits, c.Resources.Limits); diff != "" {
		t.Fatalf("the example is not the pod that was recorded (-recorded +example):\n%s", diff)
	}
	p.Annotations = recorded.Admitted().Annotations
	r.create(t, &p)
	t.Logf("the lock was gone %d ms after the binding", h.place(t, p.Name, recorded, locks).Milliseconds())
	r.waitReady(t, p.Name)
	r.hasShares(t, p.Name, c.Name, 0, recordedShares(t, recorded)[c.Name]...)
	if got := r.waitBound(t, p.Name, c.Name); got.By != allocation.ByHAMi {
		t.Errorf("the annotation has %+v", got)
	}
	r.waitPhase(t, p.Name, "success")
}

// hamiRejected is what the node does not follow of a recording, with its reason.
var hamiRejected = map[string]string{
	// HAMi does not read the annotation.
	hamirecord.V26 + "/nvuse": "the pod does not select it", hamirecord.V210 + "/nvuse": "the pod does not select it",
	// It knows no policies, and its GPU has consumers with the default.
	hamirecord.V26 + "/burst": "its consumers are fixed-share, not burst-share",
	// It counts less of the pods with init containers before than these can have at once.
	hamirecord.V210 + "/init-2": "0 % of 100 left; needs 10",
}

// lockHeld is how long the plugin may take to give HAMi's lock of a node back: until the
// container is created, on a busy machine. HAMi's scheduler takes a lock as lost after five minutes.
const lockHeld = 20 * time.Second

// hamiRecorded: the pods without init containers, all at once on the node. What it has given
// out is then what is on HAMi's account.
func hamiRecorded(t *testing.T, r *rig, locks *lockLog) {
	h := r.replay(t, filepath.Base(t.Name()))
	want := tally{}
	running := map[string]*hamirecord.Pod{}
	for i := range h.Pods {
		p := &h.Pods[i]
		if len(p.Submitted.InitContainers) > 0 {
			continue
		}
		name := "hami-" + p.Name
		if gone := h.schedule(t, name, p, locks); gone > lockHeld {
			t.Errorf("the lock of %s was held for %s", name, gone)
		}
		if reason, rejected := hamiRejected[h.Version+"/"+p.Name]; rejected {
			r.waitEvent(t, name, "SGPURejected", reason)
			r.waitPhase(t, name, "failed")
			continue
		}
		// HAMi saw each pod's devices prepared before the next: their policies decide.
		r.waitPhase(t, name, "success")
		running[name] = p
	}
	for name, p := range running {
		r.waitReady(t, name)
		for container, shares := range recordedShares(t, p) {
			r.hasShares(t, name, container, 0, shares...)
			want.add(shares)
		}
	}
	if diff := cmp.Diff(want, r.count(t)); diff != "" {
		t.Errorf("given out of the GPUs (-HAMi's account +node's):\n%s", diff)
	}
}
