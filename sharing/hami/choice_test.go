package hami_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

const (
	gpuA  = "GPU-aaaa-0000-0001"
	gpuB  = "GPU-bbbb-0000-0002"
	total = 143771
	// absent is the reason that is no rejection.
	absent = "Absent"
)

func gpuMemory() map[string]int64 {
	return map[string]int64{gpuA: total, gpuB: total}
}

// recordedChoices are the GPUs of each container that asks for some, by their index, and
// what HAMi counts of each: percent and MiB, 0 for all of the memory.
var recordedChoices = map[string]map[string]string{
	hamirecord.V26: {
		"burst/a": "2 30/8192", "excl/a": "0 100/0", "fixed/a": "2 30/8192", "mi/a": "3 10/512", "multi/a": "2 10/2048",
		"multi/b": "1 20/3072", "multi2/b": "2,1 20/3072", "nosched/a": "3 20/4096", "nouse/a": "6 10/2048",
		"novcore/a": "7 100/8192", "nvqos/a": "1 30/8192", "nvuse/a": "1 10/2048", "sample-pod/ubuntu": "3 60/4096",
		"use/a": "6 10/2048", "init-2/i": absent, "init-2/a": "3 20/4096", "init-big/i": absent, "init-big/a": "3 20/4096",
		"init-only/i": absent, "init-small/i": absent, "init-small/a": "3 20/4096", "sidecar/sc": absent, "sidecar/a": "3 20/4096",
	},
	hamirecord.V210: {
		"burst/a": "2 30/8192", "excl/a": "4 100/0", "fixed/a": "3 30/8192", "mi/a": "6 10/512", "multi/a": "6 10/2048",
		"multi/b": "5 20/3072", "multi2/b": "6,5 20/3072", "nosched/a": "7 20/4096", "nouse/a": "6 10/2048",
		"novcore/a": "1 100/8192", "nvqos/a": "6 30/8192", "nvuse/a": "6 10/2048", "sample-pod/ubuntu": "7 60/4096",
		"use/a": "6 10/2048", "init-2/i": "7,6 10/2048", "init-2/a": "6 20/4096", "init-big/i": "7 50/20480", "init-big/a": "7 20/4096",
		"init-only/i": "6 50/20480", "init-small/i": "7 10/2048", "init-small/a": "7 20/4096", "sidecar/sc": "7 10/2048",
		"sidecar/a": "7 20/4096",
	},
}

// TestRecordedChoices: the GPUs of every container are read from what unmodified HAMi
// wrote, in the layout of its version.
func TestRecordedChoices(t *testing.T) {
	c := config.Default()
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	for _, version := range hamirecord.Versions() {
		recording := hamirecord.Load(t, version)
		gpus, err := hami.ParseNodeGPUs(recording.Node[wellknown.HAMiGPUs])
		if err != nil {
			t.Fatal(err)
		}
		memory, index := map[string]int64{}, map[string]string{}
		for i, g := range gpus {
			memory[g.UUID], index[g.UUID] = int64(g.TotalVRam), strconv.Itoa(i)
		}
		got := map[string]string{}
		for _, p := range recording.Pods {
			pod := p.Bound()
			for _, one := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				want, err := quota.ParseRequest(one.Resources.Limits, hami.Annotations(pod, c.Domains), &c)
				if errors.Is(err, quota.ErrNoShare) {
					continue
				}
				var uuids []string
				var counts quota.Request
				if err == nil {
					uuids, counts, err = hami.Choice(pod, one.Name, &want, hamirecord.Node, memory)
				}
				for i := range uuids {
					uuids[i] = index[uuids[i]]
				}
				key := p.Name + "/" + one.Name
				switch got[key] = fmt.Sprintf("%s %d/%d", strings.Join(uuids, ","), counts.VCore, counts.MemoryMiB); {
				case errors.Is(err, hami.ErrAbsent):
					got[key] = absent
				case err != nil:
					got[key] = err.Error()
				}
			}
		}
		if diff := cmp.Diff(recordedChoices[version], got); diff != "" {
			t.Errorf("HAMi %s (-want +got):\n%s", version, diff)
		}
	}
}

// TestCopiesForInitContainers: HAMi 2.9, which is not recorded, gives an init container
// that asks for no more than an app container the latter's share.
func TestCopiesForInitContainers(t *testing.T) {
	const none = "none"
	for _, tt := range []struct {
		name, list     string
		apps, initGPUs int
		want           string // of the init container
	}{
		{"the first container's", `[[{"uuid":"A","compute":30,"vRam":2048}],[{"uuid":"A","compute":30,"vRam":2048}],[]]`, 2, 1, gpuA},
		{"of less compute", `[[{"uuid":"A","compute":5,"vRam":2048}],[{"uuid":"A","compute":5,"vRam":2048}]]`, 1, 1, gpuA},
		{"of less memory", `[[{"uuid":"B","compute":30,"vRam":512}],[{"uuid":"B","compute":30,"vRam":512}]]`, 1, 1, gpuB},
		{"of a container that has none", `[[],[],[{"uuid":"A","compute":20,"vRam":8192}]]`, 2, 1, absent},
		{
			"of two GPUs for one", `[[{"uuid":"B","vRam":4096},{"uuid":"A","vRam":4096}],[{"uuid":"B","vRam":4096},{"uuid":"A","vRam":4096}]]`,
			1, 1, gpuB,
		},
		{"for one that asks for none", `[[{"uuid":"A","vRam":2048}],[{"uuid":"A","vRam":2048}]]`, 1, 0, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := bound()
			pod.Annotations[wellknown.HAMiAllocation] = strings.NewReplacer(`"A"`, `"`+gpuA+`"`, `"B"`, `"`+gpuB+`"`).Replace(tt.list)
			pod.Spec.InitContainers, pod.Spec.Containers = []corev1.Container{{Name: "prepare"}}, pod.Spec.Containers[:tt.apps]
			uuids, _, err := hami.Choice(pod, "prepare", &quota.Request{GPUs: tt.initGPUs, VCore: 10, MemoryMiB: 1024}, "node1", gpuMemory())
			got := strings.Join(uuids, ",")
			switch {
			case errors.Is(err, hami.ErrAbsent):
				got = absent
			case err != nil:
				got = err.Error()
			case len(uuids) == 0:
				got = none
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// bound is a pod of two containers as HAMi binds it: main has 60 % and 4 GiB of
// GPU A, side has none.
func bound() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p1", Annotations: map[string]string{
		wellknown.HAMiAllocation:    `[[{"uuid":"` + gpuA + `","compute":60,"vRam":4096}],[]]`,
		wellknown.HAMiPredicateTime: "1795223838726454907", wellknown.HAMiChosenTime: "1795223838",
		wellknown.HAMiNode: "node1", wellknown.HAMiBindTime: "1795223839", wellknown.HAMiBindPhase: "allocating",
	}}}
	pod.Spec = corev1.PodSpec{
		NodeName: "node1", SchedulerName: "hami-scheduler",
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
			message: `metax-tech.com/gpu-devices-allocated: HAMi chose node "n2", the pod is bound to "node1", this is node1`,
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
			got, _, err := hami.Choice(pod, tt.container, &quota.Request{GPUs: 1, VCore: 60, MemoryMiB: 4096}, "node1", gpuMemory())
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
	_, _, err := hami.Choice(pod, "main", &quota.Request{GPUs: 1, VCore: 100}, "node1", gpuMemory())
	if err == nil || !strings.Contains(err.Error(), "which has 143771") {
		t.Errorf("got %v", err)
	}
}

// Whatever the annotations contain, a container gets no more GPUs than it
// requests, and no GPU that the node does not share.
// What an error repeats of annotations is bounded: it goes into logs and reports, and is remembered.
func TestLongAnnotations(t *testing.T) {
	for _, key := range []string{
		wellknown.HAMiAllocation, wellknown.HAMiNode, wellknown.HAMiBindTime, wellknown.HAMiPredicateTime,
	} {
		pod := bound()
		pod.Annotations[key] = strings.Repeat("x", 200<<10)
		_, _, err := hami.Choice(pod, "main", &quota.Request{GPUs: 1, VCore: 60, MemoryMiB: 4096}, "node1", gpuMemory())
		if err == nil || len(err.Error()) > 300 {
			t.Errorf("%s: an error of %d bytes", key, len(fmt.Sprint(err)))
		}
	}
	if _, err := hami.ParsePodShares(`[[{"compute":` + strings.Repeat("1", 200<<10) + `}]]`); err == nil || len(err.Error()) > 300 {
		t.Errorf("a long number: an error of %d bytes", len(fmt.Sprint(err)))
	}
}

func FuzzChoice(f *testing.F) {
	for _, version := range hamirecord.Versions() {
		for _, p := range hamirecord.Load(f, version).Pods {
			a := p.Written.Annotations
			f.Add(a[wellknown.HAMiAllocation], a[wellknown.HAMiPredicateTime], a[wellknown.HAMiBindTime], 1, 30, int64(2048))
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
			got, _, err := hami.Choice(pod, name, want, "node1", gpuMemory())
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
