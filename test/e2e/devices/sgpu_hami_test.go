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

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
func TestHAMiSide(t *testing.T) { //nolint:tparallel // Its parts share a rig.
	beside(t)
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
		{"init containers of " + hamirecord.V26, hamiUnlisted},
		{hamirecord.V210, hamiRecorded},
		{"init containers of " + hamirecord.V210, hamiInits},
		{"one after another", hamiRow},
		{"rounding", hamiRounding},
		{"policy", hamiPolicy},
		{"forged", hamiForged},
		{"others", hamiOthers},
		{"controllers", hamiLoops},
		{"locks of others", hamiLocks},
		{"closed", hamiClosed},
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
	eventually(t, waitStart, func() string { return cmp.Diff(want, r.hamiGPUs(t)) })
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
	r.waitReady(t, p.Name, waitStart)
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
			r.waitEvent(t, name, "SGPURejected", reason, waitStart)
			r.waitPhase(t, name, "failed")
			continue
		}
		// HAMi saw each pod's devices prepared before the next: their policies decide.
		r.waitPhase(t, name, "success")
		running[name] = p
	}
	for name, p := range running {
		r.waitReady(t, name, waitStart)
		for container, shares := range recordedShares(t, p) {
			r.hasShares(t, name, container, 0, shares...)
			want.add(shares)
		}
	}
	if diff := cmp.Diff(want, r.count(t)); diff != "" {
		t.Errorf("given out of the GPUs (-HAMi's account +node's):\n%s", diff)
	}
}

// hamiInits: HAMi 2.10 chooses for init containers too.
func hamiInits(t *testing.T, r *rig, locks *lockLog) {
	h := r.replay(t, hamirecord.V210)
	for _, p := range initPods(h) {
		name := "hami-" + p.Name
		h.schedule(t, name, p, locks)
		if reason, rejected := hamiRejected[h.Version+"/"+p.Name]; rejected {
			r.waitEvent(t, name, "SGPURejected", reason, waitStart)
			continue
		}
		r.waitReady(t, name, waitStart)
		for _, c := range p.Submitted.InitContainers {
			r.hasShares(t, name, c.Name, 0, recordedShares(t, p)[c.Name]...)
		}
		for _, c := range p.Submitted.Containers {
			r.hasShares(t, name, c.Name, 0, recordedShares(t, p)[c.Name]...)
		}
		r.waitPhase(t, name, "success")
	}
	r.count(t)
}

// hamiUnlisted: HAMi 2.6 chooses none for init containers. The node does where it may; one pod
// at a time, since HAMi does not count what that takes.
func hamiUnlisted(t *testing.T, r *rig, locks *lockLog) {
	h := r.replay(t, hamirecord.V26)
	schedule := func(p *hamirecord.Pod) (name string) {
		name = "hami-" + p.Name
		if _, chosen := p.Written.Annotations[apinames.HAMiAllocation]; chosen {
			h.schedule(t, name, p, locks)
		} else { // It takes no lock either.
			r.create(t, h.pod(name, p))
			h.decideAndBind(t, name, p, nil)
		}
		return name
	}
	var rejected []string
	for _, p := range initPods(h) {
		name := schedule(p)
		r.waitEvent(t, name, "SGPURejected", "no scheduler chose a GPU, and sgpu.unscheduled is reject", waitStart)
		r.waitPhase(t, name, "failed")
		rejected = append(rejected, name)
	}
	r.remove(t, rejected...)
	r.configure(t, strings.Replace(hamiConfig, "reject", "place", 1))
	defer r.configure(t, hamiConfig)
	for _, p := range initPods(h) {
		name := schedule(p)
		r.waitReady(t, name, waitStart)
		for _, c := range p.Submitted.Containers {
			r.hasShares(t, name, c.Name, 0, recordedShares(t, p)[c.Name]...)
		}
		if p.Name == "init-big" {
			r.hasShares(t, name, "i", 0, slice(50, 20))
		}
		r.count(t)
		r.remove(t, name)
	}
}

// initPods are the recorded pods with init containers.
func initPods(h *replay) (pods []*hamirecord.Pod) {
	for i := range h.Pods {
		if len(h.Pods[i].Submitted.InitContainers) > 0 {
			pods = append(pods, &h.Pods[i])
		}
	}
	return pods
}

// hamiRow: HAMi binds a pod when the last one's lock is gone.
func hamiRow(t *testing.T, r *rig, locks *lockLog) {
	const n = 10
	h := r.replay(t, hamirecord.V210)
	p := h.Pod(t, "mi") // 10 % of a GPU.
	var all []time.Duration
	begin := time.Now()
	for i := range n {
		all = append(all, h.schedule(t, fmt.Sprintf("row-%02d", i), p, locks))
	}
	took := time.Since(begin)
	slices.Sort(all)
	t.Logf("%d pods bound one after another in %.2f s, %.1f a second; lock gone after the binding: median %d ms, longest %d ms",
		n, took.Seconds(), n/took.Seconds(), all[n/2].Milliseconds(), all[n-1].Milliseconds())
	if all[n/2] > 500*time.Millisecond {
		t.Errorf("half of the locks were held for %s and longer", all[n/2])
	}
	for i := range n {
		r.waitReady(t, fmt.Sprintf("row-%02d", i), waitStart)
	}
	if got := r.count(t)[recordedShares(t, p)["a"][0].UUID]; got.VCore != 10*n || got.Slots != n {
		t.Errorf("taken of the card: %+v", got)
	}
}

// hamiRounding: an amount between two MiB is rounded down, as HAMi counts it, so that sixteen of
// these fit on a GPU. No recorded pod has one, so HAMi's part is that of pod mi but for the amount.
func hamiRounding(t *testing.T, r *rig, _ *lockLog) {
	const asked, given = "5345M", 5345_000_000 >> 20
	h := r.replay(t, hamirecord.V210)
	p := h.Pod(t, "mi")
	pod := h.pod("rounded", p)
	pod.Spec.Containers[0].Resources.Limits[memoryResource] = resource.MustParse(asked)
	r.create(t, pod)
	h.decideAndBind(t, "rounded", p, func(annotations map[string]string) {
		text := annotations[apinames.HAMiAllocation]
		annotations[apinames.HAMiAllocation] = strings.Replace(text, `"vRam":512}`, fmt.Sprintf(`"vRam":%d}`, given), 1)
	})
	r.waitReady(t, "rounded", waitStart)
	want := recordedShares(t, p)["a"]
	want[0].MemoryMiB = given
	r.hasShares(t, "rounded", "a", 0, want...)
	r.count(t)
}

// hamiPolicy: HAMi waits for a card's policy to be what it decided, and for it
// to be none when the card is empty. (Of a consumer with vcore 100 it expects none.)
func hamiPolicy(t *testing.T, r *rig, locks *lockLog) {
	h := r.replay(t, hamirecord.V210)
	p := h.Pod(t, "fixed")
	h.schedule(t, "policy", p, locks)
	r.waitReady(t, "policy", waitStart)
	wait := func(want string) time.Duration {
		return eventually(t, waitStart, func() string {
			got := map[string]string{}
			for uuid, c := range r.hamiGPUs(t) {
				if c.QoSPolicy != "" {
					got[uuid] = c.QoSPolicy
				}
			}
			expected := map[string]string{}
			if want != "" {
				expected[recordedShares(t, p)["a"][0].UUID] = want
			}
			return cmp.Diff(expected, got)
		})
	}
	wait("fixed-share")
	r.remove(t, "policy")
	t.Logf("the policy was cleared %s after its only pod was gone", wait("").Round(time.Millisecond))
	// No pod follows, so the kubelet's checkpoint still names the last one's devices.
	t.Logf("its checkpoint entry and its CDI spec went after %s more", eventually(t, 30*time.Second, func() string {
		specs, _ := filepath.Glob(r.NodeDir("/run/cdi") + "/heddle-sgpu-*")
		entries, _ := filepath.Glob(filepath.Join(r.dir, "state", "records", "*.json"))
		if len(specs)+len(entries) > 0 {
			return fmt.Sprintf("left are %q and %q", specs, entries)
		}
		return ""
	}).Round(time.Millisecond))
}
