//go:build e2e && linux

package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
	account "github.com/heddle-dev/heddle/deviceplugin/report"
)

// Who answers to bad input.
const (
	byAPI       = "API server"  // the pod is not created
	byScheduler = "scheduler"   // it is Pending, unschedulable
	byKubelet   = "kubelet"     // it has failed, by admission
	byHeddle    = "SGPURefused" // it waits, and an Event has the reason
	byNone      = ""            // it runs
)

// bad is a pod that asks for something odd.
type bad struct {
	name   string
	limits map[corev1.ResourceName]string
	// requests differ from the limits where they are set.
	requests map[corev1.ResourceName]string
	// chosen is heddle-scheduler's annotation.
	chosen string
	// avoid is a GPU that the node must not choose: another row's pod needs it.
	avoid string
	// bound goes around the scheduler, as a pod with nodeName does.
	bound   bool
	by      string
	message string
	// shares are what it has if it runs.
	shares []allocation.Share
}

func badInput(r *rig, t *testing.T) []bad {
	t.Helper()
	l := func(sgpu, vcore, vmemory string) map[corev1.ResourceName]string {
		list := map[corev1.ResourceName]string{}
		for name, text := range map[corev1.ResourceName]string{slotResource: sgpu, coreResource: vcore, memoryResource: vmemory} {
			if text != "" {
				list[name] = text
			}
		}
		return list
	}
	choice := func(node, uuid string, vcore int) string {
		a := allocation.Allocation{Version: allocation.Version, Node: node, Containers: map[string][]allocation.Share{
			"app": {{UUID: uuid, VCore: vcore, MemoryMiB: 4096}},
		}}
		return a.String()
	}
	good := choice(r.Node(), r.gpuAt(t, 3), 60)
	return []bad{
		{name: "vcore-0", limits: l("1", "0", "4"), by: byHeddle, message: "nvidia.com/vcore: 0 is not 1 to 100 percent of a GPU"},
		{name: "vcore-101", limits: l("1", "101", "4"), by: byHeddle, message: "nvidia.com/vcore: 101 is not 1 to 100 percent of a GPU"},
		{name: "vcore-negative", limits: l("1", "-1", "4"), by: byAPI, message: "must be greater than or equal to 0"},
		{name: "vcore-half", limits: l("1", "500m", "4"), by: byAPI, message: "must be an integer"},
		{name: "vcore-801", limits: l("1", "801", "4"), by: byScheduler, message: "Insufficient nvidia.com/vcore"},
		{name: "vmemory-0", limits: l("1", "60", "0"), by: byHeddle, message: "nvidia.com/vmemory: invalid amount 0"},
		{name: "vmemory-80", limits: l("1", "60", "80"), by: byHeddle, message: "none of 8 GPUs can give 60 % of compute and 80 GiB"},
		{name: "vmemory-700", limits: l("1", "60", "700"), by: byScheduler, message: "Insufficient nvidia.com/vmemory"},
		{name: "vmemory-suffix", limits: l("1", "60", "4Gi"), by: byScheduler, message: "Insufficient nvidia.com/vmemory"},
		{name: "vmemory-suffix-bound", limits: l("1", "60", "4Gi"), bound: true, by: byKubelet, message: "nvidia.com/vmemory"},
		{name: "sgpu-9", limits: l("9", "10", "4"), by: byHeddle, message: "9 GPUs are requested and the node shares 8"},
		{name: "sgpu-129", limits: l("129", "1", "1"), by: byScheduler, message: "Insufficient nvidia.com/sgpu"},
		{
			name: "less-requested", limits: l("1", "60", "4"), requests: l("1", "30", "4"), by: byAPI,
			message: "must be equal to nvidia.com/vcore limit",
		},
		{name: "sgpu-alone", limits: l("1", "", ""), avoid: r.gpuAt(t, 3), by: byNone, shares: []allocation.Share{{VCore: 100, MemoryMiB: 81559}}},
		{name: "vcore-without-sgpu", limits: l("", "60", "4"), by: byNone},
		{
			name: "chosen", limits: l("1", "60", "4"), chosen: good, by: byNone,
			shares: []allocation.Share{{UUID: r.gpuAt(t, 3), VCore: 60, MemoryMiB: 4096}},
		},
		{
			name: "chosen-other-node", limits: l("1", "60", "4"), chosen: choice("node2", r.gpuAt(t, 3), 60), by: byHeddle,
			message: "is for node node2, and this is " + r.Node(),
		},
		{name: "chosen-truncated", limits: l("1", "60", "4"), chosen: good[:len(good)-4], by: byHeddle, message: apinames.SGPUAllocation},
		{
			name: "chosen-unknown-card", limits: l("1", "60", "4"), chosen: choice(r.Node(), "GPU-none", 60), by: byHeddle,
			message: "chose GPU GPU-none, which this node does not share",
		},
		{
			name: "chosen-more", limits: l("1", "30", "4"), chosen: good, by: byHeddle,
			message: "the container requests others",
		},
	}
}

// pod is the pod of a row.
func (b *bad) pod(r *rig) *corev1.Pod {
	list := func(texts map[corev1.ResourceName]string) corev1.ResourceList {
		quantities := corev1.ResourceList{}
		for name, text := range texts {
			quantities[name] = resource.MustParse(text)
		}
		return quantities
	}
	p := r.pod("bad-"+b.name, box{more: list(b.limits)})
	if b.requests != nil {
		p.Spec.Containers[0].Resources.Requests = list(b.requests)
	}
	if b.chosen != "" {
		p.Annotations = map[string]string{apinames.SGPUAllocation: b.chosen}
	}
	if b.avoid != "" {
		p.Annotations = map[string]string{"nvidia.com/nouse-gpuuuid": b.avoid}
	}
	if b.bound {
		p.Spec.NodeName = r.Node()
	}
	return p
}

// TestSGPUBadInput is the table of bad input as far as others than heddle
// reject: the API server, the scheduler, the kubelet. All of it is there at once,
// and nothing of it costs another pod a share.
//
// Two containers that claim one slot cannot be had here: the kubelet gives an ID
// to one container at a time, and to a second only when it takes over what an
// init container of its pod had. What the device state does when it gets this all the
// same is a test of its own.
func TestSGPUBadInput(t *testing.T) {
	r := sgpu(t)
	rows := badInput(r, t)
	answers := make([]error, len(rows))
	pods := make([]*corev1.Pod, len(rows))
	t.Cleanup(func() { r.remove(t, names(pods)...) })
	for i := range rows {
		pods[i] = rows[i].pod(r)
		_, answers[i] = r.client.CoreV1().Pods(namespace).Create(t.Context(), pods[i], metav1.CreateOptions{})
	}
	for i := range rows {
		b, err := &rows[i], answers[i]
		t.Run(b.name, func(t *testing.T) {
			if (err != nil) != (b.by == byAPI) || err != nil && !strings.Contains(err.Error(), b.message) {
				t.Fatalf("the API server answers %v", err)
			}
			if err == nil {
				r.answered(t, b)
			}
		})
	}
	r.count(t)
}

// answered waits for the answer to a row.
func (r *rig) answered(t *testing.T, b *bad) {
	t.Helper()
	name := "bad-" + b.name
	switch b.by {
	case byScheduler:
		r.waitEvent(t, name, "FailedScheduling", b.message, waitStart)
	case byKubelet:
		p := r.waitPod(t, name, waitStart, func(p *corev1.Pod) string {
			if p.Status.Phase != corev1.PodFailed {
				return "it has not failed"
			}
			return ""
		})
		if text := inShort(p); !strings.Contains(text, b.message) {
			t.Errorf("the kubelet reports %q", text)
		}
	case byHeddle:
		r.waitEvent(t, name, "SGPURefused", b.message, waitStart)
		p := r.waitPod(t, name, 20*time.Second, func(p *corev1.Pod) string {
			if !strings.Contains(waitingFor(p), "gets no GPU") {
				return fmt.Sprintf("its state has %q", waitingFor(p))
			}
			return ""
		})
		if p.Status.Phase != corev1.PodPending {
			t.Errorf("it is %s", p.Status.Phase)
		}
		bindings := r.account(t).Bindings
		if slices.ContainsFunc(bindings, func(x account.Binding) bool { return x.Pod == name && len(x.Shares) > 0 }) {
			t.Error("it has shares all the same")
		}
	case byNone:
		r.waitReady(t, name, waitStart)
		r.hasShares(t, name, "app", 0, b.shares...)
	}
}

// waitingFor are the messages of containers that do not start.
func waitingFor(p *corev1.Pod) string {
	var all []string
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Message != "" {
			all = append(all, w.Message)
		}
	}
	return strings.Join(all, "; ")
}
