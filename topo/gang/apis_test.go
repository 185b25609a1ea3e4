package gang_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/topo/gang"
)

var update = flag.Bool("update", false, "write testdata")

// readGangs are the gangs of pods as the API server has them, as text: those that
// topo-master shows, with their members in the order of ranks.
func readGangs(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := json.Unmarshal(text, &pods); err != nil {
		t.Fatal(err)
	}
	gangs := map[string][]*gang.Member{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		gpus := pod.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]
		m, ok := gang.MemberOf(pod, int32(gpus.Value()))
		if ok {
			gangs[m.Key()] = append(gangs[m.Key()], m)
		}
		if ok && !gang.Concerns(pod) && m.API != gang.Job {
			t.Errorf("%s is a member of %s, and of no concern", pod.Name, m.Key())
		}
	}
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(gangs)) {
		members := gangs[key]
		if !gang.Together(members) {
			continue
		}
		gang.OrderMembers(members)
		fmt.Fprintf(&out, "%s, %d must run\n", key, members[0].MinMember)
		for _, m := range members {
			fmt.Fprintf(&out, "  %s, %d GPUs\n", m.Name, m.GPUs)
		}
	}
	return out.String()
}

// Pods as each project's controllers write them.
func TestAPIs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 9 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			golden.Compare(t, strings.TrimSuffix(file, "json")+"gangs", readGangs(t, file), *update)
		})
	}
}

// A pod with the keys of all is in the gang of the first, in this order.
func TestOrderOfAPIs(t *testing.T) {
	native := "own"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ai", Name: "a", Annotations: m{"scheduling.k8s.io/group-name": "v"},
		Labels: m{
			"pod-group.scheduling.sigs.k8s.io/name": "p", "leaderworkerset.sigs.k8s.io/name": "l", "kueue.x-k8s.io/pod-group-name": "q",
			"leaderworkerset.sigs.k8s.io/group-index": "7", "jobset.sigs.k8s.io/jobset-name": "s", "training.kubeflow.org/job-name": "f",
			"ray.io/cluster": "r", "batch.kubernetes.io/job-name": "j",
		},
	}}
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &native}
	drop := func(key string) func() { return func() { delete(pod.Labels, key); delete(pod.Annotations, key) } }
	for _, tt := range []struct {
		want string
		next func()
	}{
		{"ai/own/Kubernetes", func() { pod.Spec.SchedulingGroup = nil }},
		{"ai/p/PodGroup", drop("pod-group.scheduling.sigs.k8s.io/name")},
		{"ai/v/Volcano", drop("scheduling.k8s.io/group-name")},
		{"ai/l-7/LeaderWorkerSet", func() { pod.Labels["leaderworkerset.sigs.k8s.io/group-index"] = "x" }},
		{"ai/q/Kueue", func() { pod.Labels["kueue.x-k8s.io/pod-group-name"] = "no name" }},
		{"ai/s/JobSet", drop("jobset.sigs.k8s.io/jobset-name")},
		{"ai/f/Kubeflow", drop("training.kubeflow.org/job-name")},
		{"ai/r/Ray", drop("ray.io/cluster")},
		{"ai/j/Job", drop("batch.kubernetes.io/job-name")},
	} {
		got, ok := gang.MemberOf(pod, 8)
		if !ok || got.Key() != tt.want {
			t.Fatalf("%+v, want %s", got, tt.want)
		}
		tt.next()
	}
	if got, ok := gang.MemberOf(pod, 8); ok {
		t.Errorf("%+v without any key", got)
	}
	pod.Labels = m{"jobset.sigs.k8s.io/jobset-name": "s"}
	pod.Annotations = m{"heddle.dev/gang": "4"}
	if got, _ := gang.MemberOf(pod, 0); got == nil || got.Key() != "ai/s/JobSet" || got.MinMember != 4 {
		t.Errorf("%+v of a JobSet whose pods are declared a gang", got)
	}
}

// A failed pod is a member until another runs in its place; it remains a member of a
// gang that its pods declare.
func TestCurrent(t *testing.T) {
	job := func(name, index string, created int, change ...func(*corev1.Pod)) *gang.Member {
		pod := member(name, change...)
		pod.CreationTimestamp = clock(created)
		pod.Labels = m{"batch.kubernetes.io/job-name": "j", "batch.kubernetes.io/job-completion-index": index}
		got, _ := gang.MemberOf(pod, 8)
		return got
	}
	failed := ends(corev1.PodFailed, 3)
	declared := func(name string, created int, change ...func(*corev1.Pod)) *gang.Member {
		got, _ := gang.MemberOf(member(name, append(change, func(p *corev1.Pod) { p.CreationTimestamp = clock(created) })...), 8)
		return got
	}
	for _, tt := range []struct {
		name string
		pods []*gang.Member
		want string
	}{
		{"all run", []*gang.Member{job("a-x", "0", 1, runs(2)), job("b-x", "1", 1, runs(2))}, "a-x b-x"},
		{"one failed", []*gang.Member{job("a-x", "0", 1, failed), job("b-x", "1", 1, runs(2))}, "a-x b-x"},
		{"another has its place", []*gang.Member{job("a-x", "0", 1, failed), job("b-x", "1", 1, runs(2)), job("c-x", "0", 4)}, "b-x c-x"},
		{"another index came", []*gang.Member{job("a-x", "0", 1, failed), job("b-x", "1", 4, runs(5))}, "a-x b-x"},
		{"pods without an index", []*gang.Member{job("a-x", "", 1, failed), job("b-x", "", 1, runs(2)), job("c-x", "", 4)}, "b-x c-x"},
		{"a succeeded one stays", []*gang.Member{job("a-x", "0", 1, ends(corev1.PodSucceeded, 3)), job("b-x", "0", 4)}, "a-x b-x"},
		{"all fail at once", []*gang.Member{job("a-x", "0", 3, failed), job("b-x", "0", 3, failed)}, "a-x b-x"},
		{"declared", []*gang.Member{declared("a-0", 1, failed), declared("a-0", 4)}, "a-0 a-0"},
	} {
		var got []string
		for _, m := range gang.Current(tt.pods) {
			got = append(got, m.Name)
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

// What controllers start one after the other is not a gang, nor is a pod that takes the place
// of one that failed or is being deleted.
func TestTogether(t *testing.T) {
	job := func(name string, created int, change ...func(*corev1.Pod)) *gang.Member {
		pod := member(name, change...)
		pod.CreationTimestamp, pod.Labels = clock(created), m{"batch.kubernetes.io/job-name": "j"}
		got, _ := gang.MemberOf(pod, 8)
		return got
	}
	deleted := func(p *corev1.Pod) { at := clock(9); p.DeletionTimestamp = &at }
	ended := func(minute int) func(*corev1.Pod) { return ends(corev1.PodSucceeded, minute) }
	failed := func(minute int) func(*corev1.Pod) { return ends(corev1.PodFailed, minute) }
	unknown := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	for _, tt := range []struct {
		name string
		pods []*gang.Member
		want bool
	}{
		{"none", nil, false},
		{"one", []*gang.Member{job("a", 1)}, false},
		{"two that wait", []*gang.Member{job("a", 1), job("b", 1)}, true},
		{"two that ran side by side", []*gang.Member{job("b", 2, ended(3)), job("a", 1, ended(4))}, true},
		{"one after the other", []*gang.Member{job("b", 4), job("a", 1, ended(3))}, false},
		{"one after the other in one second", []*gang.Member{job("b", 3), job("a", 3, ended(1))}, false},
		{"a failed one and its successor", []*gang.Member{job("a", 1, failed(3)), job("b", 4)}, false},
		{"one that failed at an unknown time", []*gang.Member{job("a", 1, unknown), job("b", 4)}, false},
		{"one that goes and its successor", []*gang.Member{job("a", 1, runs(2), deleted), job("b", 4)}, false},
		{"a long one beside two short ones", []*gang.Member{job("a", 1, runs(2)), job("b", 3, ended(4)), job("c", 5, ended(6))}, true},
	} {
		if got := gang.Together(tt.pods); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	declared, _ := gang.MemberOf(member("a"), 0)
	if !gang.Together([]*gang.Member{declared}) {
		t.Error("a gang that its pod declares waits for the others")
	}
}
