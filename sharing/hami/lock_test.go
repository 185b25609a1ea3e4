package hami_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/sharing/hami"
)

func TestParseLock(t *testing.T) {
	at := time.Date(2026, 11, 21, 1, 17, 18, 0, time.UTC)
	for _, tt := range []struct {
		name, value string
		want        hami.Lock
		err         string
	}{
		{name: "with its pod", value: "2026-11-21T01:17:18Z,default,p1", want: hami.Lock{Since: at, Namespace: "default", Pod: "p1"}},
		{name: "in another zone", value: "2026-11-21T09:17:18+08:00,ml,train-0.a", want: hami.Lock{Since: at, Namespace: "ml", Pod: "train-0.a"}},
		{name: "the time alone", value: "2026-11-21T01:17:18Z", err: "want time, namespace and pod"},
		{name: "nothing", err: `node lock ""`},
		{name: "no time", value: "now,default,p1", err: `node lock "now,default,p1"`},
		{name: "no pod", value: "2026-11-21T01:17:18Z,default", err: "want time, namespace and pod"},
		{name: "an empty pod", value: "2026-11-21T01:17:18Z,default,", err: "want time, namespace and pod"},
		{name: "something more", value: "2026-11-21T01:17:18Z,default,p1,uid", err: "want time, namespace and pod"},
		{name: "another path", value: "2026-11-21T01:17:18Z,default,../secrets/x", err: "want time, namespace and pod"},
		{name: "a parent", value: "2026-11-21T01:17:18Z,..,p1", err: "want time, namespace and pod"},
		{name: "a query", value: "2026-11-21T01:17:18Z,default,p1?watch=1", err: "want time, namespace and pod"},
		{name: "long", value: "2026-11-21T01:17:18Z,default," + strings.Repeat("p", 600), err: "node lock of 629 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := hami.ParseLock(tt.value)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(time.Time.Equal)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

const sgpu = "nvidia.com/sgpu"

// asking is a pod that is bound to a node, and whose one container asks for one
// of a resource.
func asking(name, node, resourceName string) *corev1.Pod {
	pod := bound()
	pod.Name, pod.UID, pod.Spec.NodeName = name, "uid-"+uidOf(name), node
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse("1")}
	pod.Status.Phase = corev1.PodPending
	return pod
}

func TestALockIsOver(t *testing.T) {
	of := func(node, resourceName string, do ...func(*corev1.Pod)) *corev1.Pod {
		pod := asking("p1", node, resourceName)
		for _, f := range do {
			f(pod)
		}
		return pod
	}
	phase := func(p corev1.PodPhase) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Status.Phase = p } }
	for _, tt := range []struct {
		name, want string
		pod        *corev1.Pod
	}{
		{name: "gone", want: "the pod is gone"},
		{name: "being bound", pod: of("", sgpu)},
		{name: "bound here", pod: of("node1", sgpu), want: "the pod is bound"},
		{name: "running here", pod: of("node1", sgpu, phase(corev1.PodRunning)), want: "the pod is bound"},
		{name: "only an init container asks", pod: of("node1", "x/y", func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil
			p.Spec.InitContainers[0].Resources.Limits = corev1.ResourceList{sgpu: resource.MustParse("1")}
		}), want: "the pod is bound"},
		{name: "another plugin's, bound here", pod: of("node1", "nvidia.com/gpumem")},
		{name: "another plugin's, ended", pod: of("node1", "nvidia.com/gpumem", phase(corev1.PodFailed)), want: "the pod has ended"},
		{name: "rejected by the kubelet", pod: of("node1", sgpu, phase(corev1.PodFailed)), want: "the pod has ended"},
		{name: "done", pod: of("node1", sgpu, phase(corev1.PodSucceeded)), want: "the pod has ended"},
		{name: "bound elsewhere", pod: of("n2", sgpu), want: "the pod is bound elsewhere"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := (hami.Lock{Namespace: "default", Pod: "p1"}).Over(tt.pod, "node1", sgpu); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzParseLock(f *testing.F) {
	for _, seed := range []string{
		"2026-11-21T01:17:18Z,default,p1", "2026-11-21T09:17:18+08:00,a,b", "2026-11-21T01:17:18Z", ",,", "2026-11-21T01:17:18Z,a,b,c",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		lock, err := hami.ParseLock(value)
		if err != nil {
			if lock.Pod != "" || lock.Namespace != "" {
				t.Fatalf("%q: %+v with %v", value, lock, err)
			}
			return
		}
		if strings.ContainsAny(lock.Pod+lock.Namespace, "/?%#") || lock.Pod == "" || lock.Namespace == "" {
			t.Fatalf("%q: %+v", value, lock)
		}
	})
}
