package publish

import (
	"strings"
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
		{"bare never", allocate.RejectedFull, 30 * time.Second},
		{"bare senseless", allocate.RejectedRequest, time.Hour},
		{"senseless never", allocate.RejectedRequest, time.Hour},
		{"gone", allocate.RejectedFull, time.Hour},
	} {
		controller := "Job"
		if strings.HasPrefix(tt.name, "bare") {
			controller = ""
		}
		if tt.name != "gone" {
			pods = append(pods, pod(tt.name, controller))
		}
		rejections = append(rejections, report.Rejection{
			Namespace: "default", Pod: tt.name, UID: tt.name, Kind: tt.kind, Reason: "full", Since: now.Add(-tt.age),
			Never: strings.HasSuffix(tt.name, "never") || tt.kind == allocate.RejectedRequest,
		})
	}
	var got []string
	for _, p := range Rejected(&c, pods, rejections, now) {
		got = append(got, p.Pod.Name+" "+p.Event+" "+p.Message)
	}
	want := []string{
		"a SGPUEvicted rejected for 30s: full", "hcas HCAEvicted rejected for 1m0s: full",
		"bare never SGPUEvicted rejected for 30s: full", "bare senseless SGPUEvicted rejected for 30s: full",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
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
		if got := replaced(changed(tt.change)) && idle(changed(tt.change), slots); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}
