package agent

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

const use, avoid = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"

func TestPodGetsTheGPUsThatItAsksFor(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	m := r.source.get()
	want := m.GPUs[5].UUID
	r.create(wish("picky", map[string]string{gpus: "1"}, map[string]string{use: want}))
	if got := r.admit("picky", map[string]int{gpus: 1})[gpus]; !slices.Equal(got, []string{want}) {
		t.Errorf("got %v, asked for %s", got, want)
	}
	r.start("picky")
	// Its GPU is taken: another pod that asks for it starts on another GPU, and gets an Event.
	r.api.RemovePods()
	r.create(wish("late", map[string]string{gpus: "1"}, map[string]string{use: want + ",GPU-of-another-node"}))
	got := r.admit("late", map[string]int{gpus: 1})[gpus]
	r.start("late")
	r.api.Wait(t, "an Event", func() bool {
		return has(r.api.warnings, "default/late "+wellknown.EventSelectorNotHonored+": the node has no GPU GPU-of-another-node; it has "+m.GPUs[0].UUID) &&
			has(r.api.warnings, "the pod does not accept GPU "+got[0])
	})
	if has(r.api.warnings, "picky") {
		t.Errorf("a pod that has what it asked for was warned: %v", r.api.warnings)
	}
	// A pod with annotations that contradict each other gets an Event.
	r.create(wish("torn", map[string]string{gpus: "2"}, map[string]string{
		avoid: m.GPUs[0].UUID, "metax-tech.com/nouse-gpuuuid": m.GPUs[1].UUID,
	}))
	r.admit("torn", map[string]int{gpus: 2})
	r.start("torn")
	r.api.Wait(t, "an Event", func() bool {
		return has(r.api.warnings, "default/torn "+wellknown.EventSelectorNotHonored+": annotations")
	})
}

func TestExpected(t *testing.T) {
	ask := map[string]string{gpus: "2"}
	wants := map[string]string{use: "GPU-b,GPU-a"}
	started := wish("started", ask, map[string]string{use: "GPU-c"})
	started.Status.StartTime = new(metav1.Now())
	for _, tt := range []struct {
		name string
		pods []string // of those below
		want quota.Selector
		ok   bool
	}{
		{name: "no pod"},
		{name: "one", pods: []string{"one"}, want: quota.Selector{Use: []string{"GPU-a", "GPU-b"}}, ok: true},
		{name: "one that wants nothing", pods: []string{"plain"}},
		{name: "two that agree", pods: []string{"one", "same"}, want: quota.Selector{Use: []string{"GPU-a", "GPU-b"}}, ok: true},
		{name: "two that do not agree", pods: []string{"one", "plain"}},
		{name: "another that has started", pods: []string{"one", "started"}, want: quota.Selector{Use: []string{"GPU-a", "GPU-b"}}, ok: true},
		{name: "another of another size", pods: []string{"one", "small"}, want: quota.Selector{Use: []string{"GPU-a", "GPU-b"}}, ok: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var pods []*corev1.Pod
			for _, name := range tt.pods {
				switch name {
				case "started":
					pods = append(pods, started)
				case "plain":
					pods = append(pods, wish(name, ask, nil))
				case "small":
					pods = append(pods, wish(name, map[string]string{gpus: "1"}, map[string]string{use: "GPU-d"}))
				default:
					pods = append(pods, wish(name, ask, wants))
				}
			}
			pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !awaits(p, gpus, 2) })
			got := common(pods, config.Default().Domains)
			ok := !got.None()
			if ok != tt.ok || ok && (!slices.Equal(got.Use, tt.want.Use) || len(got.Avoid) > 0) {
				t.Errorf("got %v, %v; want %v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}
