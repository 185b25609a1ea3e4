package publish

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

func TestRejected(t *testing.T) {
	c := config.Default()
	c.SGPU.RejectedFor = 30 * time.Second
	var pods []*corev1.Pod
	var rejections []report.Rejection
	for _, tt := range []struct {
		name, kind string
		age        time.Duration
	}{
		{"a", allocate.RejectedFull, 30 * time.Second},
		{"young", allocate.RejectedFull, 29 * time.Second},
		{"hcas", allocate.RejectedHCAs, time.Minute},
		{"senseless", allocate.RejectedRequest, time.Hour},
		{"channels", allocate.RejectedChannels, time.Hour},
		{"bare", allocate.RejectedFull, time.Hour},
		{"gone", allocate.RejectedFull, time.Hour},
	} {
		controller := "Job"
		if tt.name == "bare" {
			controller = ""
		}
		if tt.name != "gone" {
			pods = append(pods, pod(tt.name, controller))
		}
		rejections = append(rejections, report.Rejection{
			Namespace: "default", Pod: tt.name, UID: tt.name, Kind: tt.kind, Reason: "full", Since: now.Add(-tt.age),
		})
	}
	events := func(last Evicted) (all []string) {
		rejected := Rejected(&c, pods, rejections, last, now)
		for i := range rejected {
			all = append(all, rejected[i].Pod.Name+" "+rejected[i].Event+" "+rejected[i].Message)
		}
		return all
	}
	last := Evicted{}
	want := []string{"a SGPUEvicted rejected for 30s: full", "hcas HCAEvicted rejected for 1m0s: full"}
	if diff := cmp.Diff(want, events(last)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	rejected := Rejected(&c, pods, rejections, last, now)
	last.Add(now.Add(-90*time.Second), &rejected[0]) // All pods have one controller.
	if diff := cmp.Diff([]string{"hcas HCAEvicted rejected for 1m0s: full"}, events(last)); diff != "" {
		t.Errorf("after an eviction (-want +got):\n%s", diff)
	}
}

// TestEvictedAgainWaitsLonger: what one controller's pods wait for on a node whose scheduler
// chooses it again and again.
func TestEvictedAgainWaitsLonger(t *testing.T) {
	const patience = time.Minute
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	var last eviction
	var waits []time.Duration
	for range 6 {
		since := now.Add(2 * time.Second)
		wait := last.next(since, patience)
		last = eviction{since.Add(wait), wait}
		if got := last.next(since.Add(-time.Second), patience); got != wait {
			t.Errorf("one that was rejected beside it waits for %s, want %s", got, wait)
		}
		waits, now = append(waits, wait), last.at
	}
	most := 8 * patience
	if want := []time.Duration{patience, 2 * patience, 4 * patience, most, most, most}; !slices.Equal(waits, want) {
		t.Errorf("rejected for %v, want %v", waits, want)
	}
	if got := last.next(now.Add(16*patience+time.Second), patience); got != patience {
		t.Errorf("much later one waits for %s", got)
	}
}

func TestEvictable(t *testing.T) {
	changed := func(change func(*corev1.Pod)) *corev1.Pod {
		p := pod("a", "Job")
		p.Spec.Containers = []corev1.Container{{Name: "main"}}
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{slots: resource.MustParse("1")}
		change(p)
		return p
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, tt := range []struct {
		name   string
		change func(*corev1.Pod)
		want   bool
	}{
		{"never started", func(*corev1.Pod) {}, true},
		{"its logger has", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "logger"})
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}, {Name: "logger", State: running}}
		}, true},
		{"it runs", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: running}}
		}, false},
		{"it has run", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		}, false},
		{"phase", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		{"no controller", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, false},
		{"static", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Node" }, false},
		{"DaemonSet", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }, false},
		{"deleted", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, false},
	} {
		if got := evictable(changed(tt.change), slots); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}
