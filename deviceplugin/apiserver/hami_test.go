package apiserver

import (
	"context"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

func hamiPod(name string) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	p.Namespace, p.Name, p.UID = "default", name, types.UID("uid-"+name)
	p.Annotations = map[string]string{wellknown.HAMiBindTime: strconv.FormatInt(time.Now().Unix(), 10), wellknown.HAMiBindPhase: "allocating"}
	p.Spec.SchedulerName = "hami-scheduler"
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/sgpu": resource.MustParse("1")}},
	}}
	p.Status.Phase = corev1.PodPending
	return p
}

// HAMi's own order of writes: the lock, the time of binding, the binding.
// Twenty pods go through one node one after the other.
func TestHAMiBindsPodAfterPod(t *testing.T) {
	s, k := newServer(t)
	running(t, k)
	s.Wait(t, "a write", func() bool { return s.Watches() == 2 })
	b := hami.New(hami.Options{
		Node: node, Watched: k, API: k, Log: slog.New(slog.DiscardHandler),
	})
	state := hami.State{
		Enabled: true, Open: true, Resource: "nvidia.com/sgpu", Local: []string{"GPU-1"},
		GPUs: []hami.GPU{{GPU: quota.GPU{UUID: "GPU-1", MemoryMiB: 81920, Slots: 16}}},
	}
	b.Set(state)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	s.Wait(t, "a write", func() bool { return strings.Contains(s.Node.Annotations[wellknown.HAMiGPUs], `"healthy":true`) })
	start := time.Now()
	for i := range 20 {
		pod := hamiPod("p" + strconv.Itoa(i))
		s.AddPod(pod)
		s.EditNode(func(n *corev1.Node) {
			n.Annotations[wellknown.HAMiLock] = time.Now().Format(time.RFC3339) + ",default," + pod.Name
		})
		// The kubelet and others write the Node too.
		s.EditNode(func(n *corev1.Node) { n.Labels = map[string]string{"pod": pod.Name} })
		s.EditPod(pod.Name, func(p *corev1.Pod) {
			p.Annotations[wellknown.HAMiBindTime] = strconv.FormatInt(time.Now().Unix(), 10)
			p.Spec.NodeName = node
		})
		s.Wait(t, "a write", func() bool { return s.Node.Annotations[wellknown.HAMiLock] == "" })
		state.Prepared = maps.Clone(state.Prepared)
		if state.Prepared == nil {
			state.Prepared = map[types.UID]bool{}
		}
		state.Prepared[pod.UID] = true
		b.Set(state)
	}
	t.Logf("20 locks released in %s", time.Since(start))
	s.Wait(t, "a write", func() bool {
		for _, p := range s.Pods {
			if p.Annotations[wellknown.HAMiBindPhase] != "success" {
				return false
			}
		}
		return true
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := s.Node.Annotations[wellknown.HAMiGPUs]; strings.Contains(got, `"healthy":true`) || got == "" {
		t.Errorf("a node without a plugin shows HAMi %s", got)
	}
}

func TestAnnotating(t *testing.T) {
	s, k := newServer(t)
	value := "x"
	s.AddPod(hamiPod("p1"))
	name := types.NamespacedName{Namespace: "default", Name: "p1"}

	if err := k.AnnotateNode(t.Context(), "1", map[string]*string{"a/b": &value}); err != nil {
		t.Error(err)
	}
	if n, _ := k.Node(); n == nil || n.Annotations["a/b"] != "x" {
		t.Errorf("what was written is not known: %v", n)
	}
	if err := k.AnnotateNode(t.Context(), "1", map[string]*string{"a/b": nil}); !apierrors.IsConflict(err) {
		t.Errorf("an old version: %v", err)
	}
	if err := k.AnnotateNode(t.Context(), "", map[string]*string{"a/b": nil}); err != nil {
		t.Error(err)
	}
	if err := k.AnnotatePod(t.Context(), name, "uid-p1", map[string]*string{"a/b": &value}); err != nil {
		t.Error(err)
	}
	if err := k.AnnotatePod(t.Context(), name, "older", map[string]*string{"a/b": &value}); !apierrors.IsConflict(err) {
		t.Errorf("another pod: %v", err)
	}
	if _, err := k.ReadPod(t.Context(), "default", "p2"); !apierrors.IsNotFound(err) {
		t.Errorf("no pod: %v", err)
	}
	if p, err := k.ReadPod(t.Context(), "default", "p1"); err != nil || p.Annotations["a/b"] != "x" {
		t.Errorf("pod %v, %v", p, err)
	}
	want := []string{
		`nodes/gpu-1 {"metadata":{"resourceVersion":"1","annotations":{"a/b":"x"}}}`,
		`nodes/gpu-1 {"metadata":{"resourceVersion":"1","annotations":{"a/b":null}}}`,
		`nodes/gpu-1 {"metadata":{"annotations":{"a/b":null}}}`,
		`namespaces/default/pods/p1 {"metadata":{"uid":"uid-p1","annotations":{"a/b":"x"}}}`,
		`namespaces/default/pods/p1 {"metadata":{"uid":"older","annotations":{"a/b":"x"}}}`,
	}
	if diff := cmp.Diff(want, s.Writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}
