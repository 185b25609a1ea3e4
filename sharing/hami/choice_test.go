package hami_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

const (
	gpuA  = "GPU-aaaa-0000-0001"
	gpuB  = "GPU-bbbb-0000-0002"
	total = 143771
	// absent is the reason that is no rejection.
	absent = "Absent"
)

func rules() hami.Rules {
	return hami.Rules{
		Node: "n1", SchedulerName: "hami-scheduler", MemoryMiB: map[string]int64{gpuA: total, gpuB: total},
	}
}

// written is what one version of HAMi writes. want has the shares of each
// container, or the reason why there are none.
type written struct {
	Version string `json:"version"`
	Lock    string `json:"lock"`
	Pods    []struct {
		Name        string                     `json:"name"`
		Annotations map[string]string          `json:"annotations"`
		Init        []asked                    `json:"init"`
		Containers  []asked                    `json:"containers"`
		Want        map[string]json.RawMessage `json:"want"`
	} `json:"pods"`
}

type asked struct {
	Name      string `json:"name"`
	GPUs      int    `json:"cards"`
	VCore     int    `json:"vcore"`
	MemoryMiB int64  `json:"memoryMiB"`
}

func (a asked) request() *quota.Request {
	return &quota.Request{GPUs: a.GPUs, VCore: a.VCore, MemoryMiB: a.MemoryMiB}
}

func containers(list []asked) (all []corev1.Container) {
	for _, a := range list {
		all = append(all, corev1.Container{Name: a.Name})
	}
	return all
}

func versions(tb testing.TB) (all []written) {
	tb.Helper()
	for _, version := range []string{"2.6", "2.7", "2.8", "2.9", "2.10"} {
		text, err := os.ReadFile(filepath.Join("testdata", version+".json"))
		if err != nil {
			tb.Fatal(err)
		}
		var w written
		if err := json.Unmarshal(text, &w); err != nil || w.Version != version {
			tb.Fatalf("%s: %v", version, err)
		}
		all = append(all, w)
	}
	return all
}

func TestEveryVersionIsUnderstood(t *testing.T) {
	for _, v := range versions(t) {
		for _, p := range v.Pods {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p1", Annotations: p.Annotations}}
			pod.Spec = corev1.PodSpec{
				NodeName: "n1", SchedulerName: "hami-scheduler",
				InitContainers: containers(p.Init), Containers: containers(p.Containers),
			}
			for _, a := range slices.Concat(p.Init, p.Containers) {
				t.Run(v.Version+"/"+p.Name+"/"+a.Name, func(t *testing.T) {
					got, _, err := hami.Choice(pod, a.Name, a.request(), rules())
					var reason string
					if json.Unmarshal(p.Want[a.Name], &reason) == nil {
						if err == nil || errors.Is(err, hami.ErrAbsent) != (reason == absent) {
							t.Errorf("got %v, %v, want reason %s", got, err, reason)
						}
						return
					}
					var shares []allocation.Share
					if err := json.Unmarshal(p.Want[a.Name], &shares); err != nil {
						t.Fatal(err)
					}
					want := []string{}
					for _, s := range shares {
						want = append(want, s.UUID)
					}
					if diff := cmp.Diff(want, got); diff != "" || err != nil {
						t.Errorf("%v (-want +got):\n%s", err, diff)
					}
				})
			}
		}
	}
}

// bound is a pod of two containers as HAMi binds it: main has 60 % and 4 GiB of
// GPU A, side has none.
func bound() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p1", Annotations: map[string]string{
		wellknown.HAMiAllocation:    `[[{"uuid":"` + gpuA + `","compute":60,"vRam":4096}],[]]`,
		wellknown.HAMiPredicateTime: "1795223838726454907", wellknown.HAMiChosenTime: "1795223838",
		wellknown.HAMiNode: "n1", wellknown.HAMiBindTime: "1795223839", wellknown.HAMiBindPhase: "allocating",
	}}}
	pod.Spec = corev1.PodSpec{
		NodeName: "n1", SchedulerName: "hami-scheduler",
		Containers: []corev1.Container{{Name: "main"}, {Name: "side"}},
	}
	return pod
}

func TestWhatHAMiWroteIsJudged(t *testing.T) {
	set := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[key] = value }
	}
	drop := func(keys ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			maps.DeleteFunc(p.Annotations, func(key, _ string) bool { return slices.Contains(keys, key) })
		}
	}
	list := func(text string) func(*corev1.Pod) {
		return set(wellknown.HAMiAllocation, strings.NewReplacer("A", gpuA, "B", gpuB).Replace(text))
	}
	const ok, rejected = "", "rejected"
	for _, tt := range []struct {
		name      string
		do        func(*corev1.Pod)
		container string // main
		want      string
		message   string
	}{
		{name: "as it is", do: func(*corev1.Pod) {}, want: ok},
		{name: "no annotation", do: drop(wellknown.HAMiAllocation), want: absent},
		{name: "no such container", do: func(*corev1.Pod) {}, container: "x", want: absent},
		{
			name: "the default scheduler's pod", do: func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" }, want: rejected,
			message: `metax-tech.com/gpu-devices-allocated is not believed: the pod's scheduler is "default-scheduler", and HAMi is "hami-scheduler"`,
		},
		{name: "no scheduler", do: func(p *corev1.Pod) { p.Spec.SchedulerName = "" }, want: rejected},
		{
			name: "chosen for another node", do: set(wellknown.HAMiNode, "n2"), want: rejected,
			message: `metax-tech.com/gpu-devices-allocated: HAMi chose node "n2", the pod is bound to "n1", this is n1`,
		},
		{name: "bound to another node", do: func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, want: rejected},
		{name: "no node", do: drop(wellknown.HAMiNode), want: rejected},
		{name: "never bound", do: drop(wellknown.HAMiBindTime), want: rejected},
		{name: "bound at no time", do: set(wellknown.HAMiBindTime, "yesterday"), want: rejected},
		{name: "chosen at no time", do: set(wellknown.HAMiPredicateTime, "yesterday"), want: rejected},
		{
			name: "chosen again later", do: set(wellknown.HAMiPredicateTime, "1795223840000000000"), want: rejected,
			message: "metax-tech.com/gpu-devices-allocated is of 2026-11-21T01:17:20Z, and the pod was bound at 2026-11-21T01:17:19Z: HAMi chose again after it had bound",
		},
		{name: "chosen in the second of the binding", do: set(wellknown.HAMiPredicateTime, "1795223839999999999"), want: ok},
		{name: "only the older time", do: drop(wellknown.HAMiPredicateTime), want: ok},
		{name: "the older time, later", do: func(p *corev1.Pod) {
			drop(wellknown.HAMiPredicateTime)(p)
			set(wellknown.HAMiChosenTime, "1795223840")(p)
		}, want: rejected},
		{name: "no time of choice", do: drop(wellknown.HAMiPredicateTime, wellknown.HAMiChosenTime), want: rejected},
		{name: "empty", do: list(``), want: rejected},
		{name: "truncated", do: list(`[[{"uuid":"A","compute":60,"vRa`), want: rejected},
		{name: "two lists", do: list(`[[],[]][[],[]]`), want: rejected},
		{name: "an object", do: list(`{"main":[]}`), want: rejected},
		{name: "null", do: list(`null`), want: rejected},
		{name: "no containers", do: list(`[]`), want: rejected},
		{name: "a container too few", do: list(`[[{"uuid":"A","compute":60,"vRam":4096}]]`), want: rejected},
		{name: "a container too many", do: list(`[[{"uuid":"A","compute":60,"vRam":4096}],[],[]]`), want: rejected},
		{name: "null for no devices", do: list(`[[{"uuid":"A","compute":60,"vRam":4096}],null]`), want: ok},
		{name: "the GPU twice", do: list(`[[{"uuid":"A","vRam":1},{"uuid":"A","vRam":1}],[]]`), want: rejected},
		{name: "no UUID", do: list(`[[{"compute":60,"vRam":4096}],[]]`), want: rejected},
		{name: "negative compute", do: list(`[[{"uuid":"A","compute":-1,"vRam":4096}],[]]`), want: rejected},
		{name: "compute of two GPUs", do: list(`[[{"uuid":"A","compute":200,"vRam":4096}],[]]`), want: rejected},
		{name: "no memory", do: list(`[[{"uuid":"A","compute":60}],[]]`), want: rejected},
		{
			name: "an unknown GPU", do: list(`[[{"uuid":"GPU-x","compute":60,"vRam":4096}],[]]`), want: rejected,
			message: "metax-tech.com/gpu-devices-allocated: this node has no shared GPU GPU-x",
		},
		{name: "no GPU", do: list(`[[],[]]`), want: rejected},
		{name: "two GPUs for one", do: list(`[[{"uuid":"A","compute":60,"vRam":4096},{"uuid":"B","compute":60,"vRam":4096}],[]]`), want: rejected},
		{name: "more memory than asked for", do: list(`[[{"uuid":"A","compute":60,"vRam":4097}],[]]`), want: rejected},
		{name: "more compute than asked for", do: list(`[[{"uuid":"A","compute":61,"vRam":4096}],[]]`), want: rejected},
		{name: "no compute lifts no cap", do: list(`[[{"uuid":"A","vRam":4096}],[]]`), want: ok},
		{name: "another GPU", do: list(`[[{"uuid":"B","compute":60,"vRam":4096}],[]]`), want: ok},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := bound()
			tt.do(pod)
			if tt.container == "" {
				tt.container = "main"
			}
			got, _, err := hami.Choice(pod, tt.container, &quota.Request{GPUs: 1, VCore: 60, MemoryMiB: 4096}, rules())
			if tt.want == ok {
				if err != nil || len(got) != 1 {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			if err == nil || errors.Is(err, hami.ErrAbsent) != (tt.want == absent) || got != nil ||
				tt.message != "" && err.Error() != tt.message {
				t.Errorf("got %+v, %v, want reason %s %s", got, err, tt.want, tt.message)
			}
		})
	}
}

func TestAllMemoryIsNoMoreThanTheGPU(t *testing.T) {
	pod := bound()
	pod.Annotations[wellknown.HAMiAllocation] = `[[{"uuid":"` + gpuA + `","compute":100,"vRam":143772}],[]]`
	_, _, err := hami.Choice(pod, "main", &quota.Request{GPUs: 1, VCore: 100}, rules())
	if err == nil || !strings.Contains(err.Error(), "which has 143771") {
		t.Errorf("got %v", err)
	}
}

// Whatever the annotations contain, a container gets no more GPUs than it
// requests, and no GPU that the node does not share.
func FuzzChoice(f *testing.F) {
	for _, v := range versions(f) {
		for _, p := range v.Pods {
			f.Add(p.Annotations[wellknown.HAMiAllocation], p.Annotations[wellknown.HAMiPredicateTime], p.Annotations[wellknown.HAMiBindTime], 1, 30, int64(2048))
		}
	}
	f.Add(`[[{"uuid":"GPU-aaaa-0000-0001","compute":60,"vRam":4096}],[]]`, "1795223838726454907", "1795223839", -1, 0, int64(0))
	f.Fuzz(func(t *testing.T, text, chosen, at string, gpus, vcore int, memory int64) {
		pod := bound()
		pod.Annotations[wellknown.HAMiAllocation] = text
		pod.Annotations[wellknown.HAMiPredicateTime], pod.Annotations[wellknown.HAMiBindTime] = chosen, at
		pod.Spec.InitContainers = []corev1.Container{{Name: "prepare"}}
		want := &quota.Request{GPUs: gpus, VCore: vcore, MemoryMiB: memory}
		for _, name := range []string{"prepare", "main", "side"} {
			got, _, err := hami.Choice(pod, name, want, rules())
			if err == nil && len(got) != gpus || err != nil && got != nil {
				t.Fatalf("%s: %d shares for %d GPUs, %v", name, len(got), gpus, err)
			}
			for _, s := range got {
				if s != gpuA && s != gpuB {
					t.Fatalf("%s: %s", name, s)
				}
			}
		}
	})
}
