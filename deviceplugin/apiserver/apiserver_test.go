package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/test/nodeapi"
)

const (
	node = "gpu-1"
	gpus = "nvidia.com/gpu"
	hcas = "rdma/hca_shared_devices_ib"
)

// podNamed is a pod as the API server has it before the kubelet admits it.
func podNamed(name string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "default", name, types.UID("uid-"+name)
	p.Status.Phase = corev1.PodPending
	p.Spec.Containers = []corev1.Container{{Name: "main"}}
	return p
}

func newServer(t *testing.T) (*nodeapi.Server, *Client) {
	t.Helper()
	s := nodeapi.New(t, node)
	return s, New(s.Client(), node, slog.New(slog.DiscardHandler))
}

func TestConditionIsPatchedWhenItDiffers(t *testing.T) {
	s, k := newServer(t)
	ill := health.Condition{Type: wellknown.ConditionDevices, Reason: "Lost", Message: "nvidia.com/gpu: 1 unavailable: GPU 3"}
	set := func(c health.Condition) []corev1.NodeCondition {
		t.Helper()
		if err := k.SetConditions(t.Context(), []health.Condition{c}, nil); err != nil {
			t.Fatal(err)
		}
		var all []corev1.NodeCondition
		writes := s.Writes
		s.Writes = nil
		for _, write := range writes {
			var patch corev1.Node
			text, ok := strings.CutPrefix(write, "nodes/"+node+"/status ")
			if err := json.Unmarshal([]byte(text), &patch); err != nil || !ok || len(patch.Status.Conditions) != 1 {
				t.Fatalf("wrote %s: %v", write, err)
			}
			all = append(all, patch.Status.Conditions...)
		}
		return all
	}
	first := set(ill)
	if len(first) != 1 || first[0].Type != "HeddleReady" || first[0].Status != corev1.ConditionFalse ||
		first[0].Reason != ill.Reason || first[0].Message != ill.Message || first[0].LastTransitionTime.IsZero() {
		t.Fatalf("wrote %+v", first)
	}
	first[0].LastTransitionTime = metav1.NewTime(time.Unix(1700000000, 0))
	s.Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, first[0]}
	if got := set(ill); len(got) > 0 {
		t.Errorf("wrote what the Node has: %+v", got)
	}
	ill.Message = "nvidia.com/gpu: 2 unavailable: GPU 3, GPU 4"
	if got := set(ill); len(got) != 1 || !got[0].LastTransitionTime.Equal(&first[0].LastTransitionTime) {
		t.Errorf("another message is no transition: %+v", got)
	}
	got := set(health.Condition{Type: wellknown.ConditionDevices, True: true, Reason: "AllDevicesReady"})
	if len(got) != 1 || got[0].Status != corev1.ConditionTrue || got[0].LastTransitionTime.Equal(&first[0].LastTransitionTime) {
		t.Errorf("wrote %+v", got)
	}
	// An optional condition that is false is not written while the Node lacks it.
	pending := health.Condition{Type: "HeddleModePending", Reason: "AsConfigured", Optional: true}
	if got := set(pending); len(got) > 0 {
		t.Errorf("wrote %+v to a Node that has none", got)
	}
	pending.True, pending.Reason, pending.Message = true, "ModePending", "GPU 3: native until ml/train ends, then sgpu"
	got = set(pending)
	if len(got) != 1 || got[0].Type != "HeddleModePending" || got[0].Status != corev1.ConditionTrue || got[0].Message != pending.Message {
		t.Fatalf("wrote %+v", got)
	}
	if got := set(pending); len(got) > 0 {
		t.Errorf("wrote what the Node has: %+v", got)
	}
	pending = health.Condition{Type: "HeddleModePending", Reason: "AsConfigured", Optional: true}
	if got := set(pending); len(got) != 1 || got[0].Status != corev1.ConditionFalse {
		t.Errorf("wrote %+v", got)
	}
}

// A Node gets its annotations with its conditions, in one write.
func TestAnnotationsGoWithConditions(t *testing.T) {
	s, k := newServer(t)
	s.Node.Annotations = map[string]string{"same": "1", "gone": "2"}
	ready := []health.Condition{{Type: wellknown.ConditionDevices, True: true, Reason: "AllDevicesReady"}}
	for range 2 {
		if err := k.SetConditions(t.Context(), ready, map[string]string{"same": "1", "gone": "", "new": "3"}); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := k.Node(); n == nil || n.Annotations["new"] != "3" {
		t.Errorf("what was written is not known: %v", n)
	}
	if diff := cmp.Diff(map[string]string{"same": "1", "new": "3"}, s.Node.Annotations); diff != "" || len(s.Writes) != 1 {
		t.Errorf("%d writes, annotations (-want +got):\n%s", len(s.Writes), diff)
	}
}

// running runs a Client, and makes sure that all of it ends.
func running(t *testing.T, k *Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestPodsAreKnownByEveryName(t *testing.T) {
	s, k := newServer(t)
	train, mirror := podNamed("train"), podNamed("etcd-gpu-1")
	mirror.Annotations = map[string]string{"kubernetes.io/config.mirror": "0123"}
	for _, p := range []*corev1.Pod{train, mirror} {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NCCL_IB_HCA", Value: "mlx5_0"}}
		p.Spec.NodeName = node
		s.AddPod(p)
	}
	tests := []struct {
		name, want string
		pod        kubelet.Pod
		reads      []string // before the pods are watched
	}{
		{name: "by name", pod: kubelet.Pod{Namespace: "default", Name: "train"}, want: "train", reads: []string{"get train"}},
		{name: "by name and UID", pod: kubelet.Pod{Namespace: "default", Name: "train", UID: "uid-train"}, want: "train", reads: []string{"get train"}},
		{name: "a later pod of that name", pod: kubelet.Pod{Namespace: "default", Name: "train", UID: "other"}, reads: []string{"get train"}},
		{name: "by UID", pod: kubelet.Pod{UID: "uid-train"}, want: "train"},
		{name: "a static pod", pod: kubelet.Pod{UID: "0123"}, want: "etcd-gpu-1"},
		{name: "a static pod by name", pod: kubelet.Pod{Namespace: "default", Name: "etcd-gpu-1", UID: "0123"}, want: "etcd-gpu-1", reads: []string{"get etcd-gpu-1"}},
		{name: "not there", pod: kubelet.Pod{UID: "4567"}},
		{name: "no such name", pod: kubelet.Pod{Namespace: "default", Name: "x"}},
	}
	check := func(watched bool) {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/watched=%t", tt.name, watched), func(t *testing.T) {
				s.Mu.Lock()
				s.Reads = nil
				s.Mu.Unlock()
				got, err := k.Pod(t.Context(), tt.pod)
				if tt.want == "" || tt.pod.Name == "" && !watched { // The API server cannot look up a UID.
					if err == nil {
						t.Errorf("got pod %s", got.Name)
					}
				} else if err != nil || got.Name != tt.want || len(got.Spec.Containers[0].Env) != 1 {
					t.Errorf("got %v, %v, want pod %s", got, err, tt.want)
				}
				want := tt.reads
				if watched && tt.pod.UID != "" && tt.want != "" {
					want = nil // No start waits for the API server.
				}
				if diff := cmp.Diff(want, s.Reads); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
			})
		}
	}
	check(false)
	running(t, k)
	for {
		pods, changed, known := k.Pods()
		if known && len(pods) == 2 {
			break
		}
		<-changed
	}
	check(true)
}

func TestAwait(t *testing.T) {
	s, k := newServer(t)
	one := func(p *corev1.Pod) bool { return p.Name == "one" }
	if got := k.Await(time.Hour, one); got != nil {
		t.Errorf("%v before the pods are known", got)
	}
	running(t, k)
	for known := false; !known; {
		_, _, known = k.Pods()
		runtime.Gosched()
	}
	if got := k.Await(time.Millisecond, one); got != nil {
		t.Errorf("%v without such a pod", got)
	}
	p := podNamed("one")
	p.Spec.NodeName = node
	go s.AddPod(p)
	for range 2 { // Soon, and at once.
		if got := k.Await(time.Hour, one); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	}
}

func TestEvict(t *testing.T) {
	s, k := newServer(t)
	pod := types.NamespacedName{Namespace: "team", Name: "a"}
	if err := k.Evict(t.Context(), pod, "uid-a"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a uid-a"}, s.Evicted); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
}

func TestLabelsAreKnownOnceTheNodeIs(t *testing.T) {
	_, k := newServer(t)
	if k.Labels() != nil {
		t.Error("labels of a Node that was not read")
	}
	running(t, k)
	<-k.Changed()
	if got := k.Labels(); got == nil || len(got) > 0 {
		t.Errorf("labels %v of a Node without any", got)
	}
}

func TestEvents(t *testing.T) {
	s, k := newServer(t)
	running(t, k)
	pod := kubelet.Pod{Namespace: "ml", Name: "train", UID: "u1"}
	k.WarnPod(pod, "FewerHCAs", "3 of 4")
	k.WarnPod(pod, "FewerHCAs", "3 of 4") // The kubelet tries again and again.
	k.WarnPod(kubelet.Pod{UID: "u2"}, "FewerHCAs", "a pod without a name is in the log only")
	k.WarnPod(pod, "Long", strings.Repeat("é", 600))
	k.Record(health.NodeEvent{Reason: wellknown.EventDeviceRecovered, Message: "GPU 3 is healthy again"})
	s.Wait(t, "three Events", func() bool { return len(s.Events) >= 3 })
	var got []string
	for _, e := range s.Events {
		if len(e.Message) > 1024 || !utf8.ValidString(e.Message) || strings.Contains(e.Message, "\ufffd") {
			t.Errorf("message of %d bytes: %q", len(e.Message), e.Message)
		}
		e.Message = e.Message[:min(len(e.Message), 22)]
		got = append(got, strings.Join([]string{
			e.Namespace, e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, string(e.InvolvedObject.UID),
			e.Source.Component, e.Reason, e.Message,
		}, " "))
	}
	want := []string{
		"ml Warning Pod train u1 heddle-device-plugin FewerHCAs 3 of 4",
		"ml Warning Pod train u1 heddle-device-plugin Long " + strings.Repeat("é", 11),
		"default Normal Node gpu-1 gpu-1 heddle-device-plugin DeviceRecovered GPU 3 is healthy again",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestDeviceClassesClaim(t *testing.T) {
	s, k := newServer(t)
	if got, err := k.DeviceClass(t.Context(), gpus); got != "" || err != nil {
		t.Errorf("without that API: %q, %v", got, err)
	}
	s.Classes = `{"items":[{"metadata":{"name":"plain"},"spec":{}},` +
		`{"metadata":{"name":"gpu.nvidia.com"},"spec":{"extendedResourceName":"nvidia.com/gpu"}}]}`
	k.classes.listed = time.Time{}
	for range 3 {
		got, err := k.DeviceClass(t.Context(), gpus)
		if want := "DeviceClass gpu.nvidia.com (spec.extendedResourceName)"; got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if got, err := k.DeviceClass(t.Context(), hcas); got != "" || err != nil {
		t.Errorf("%q, %v for a resource that no class names", got, err)
	}
	if diff := cmp.Diff([]string{"classes"}, s.Reads); diff != "" {
		t.Errorf("one list serves for a minute:\n%s", diff)
	}
	s.Classes = "{"
	k.classes.listed = time.Time{}
	if got, err := k.DeviceClass(t.Context(), gpus); got != "" || err == nil {
		t.Errorf("%q, %v of what is no list", got, err)
	}
}

func TestOffline(t *testing.T) {
	var c *Client
	if err := c.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, known := c.Pods(); known || c.Online() || c.Labels() != nil || c.Changed() != nil {
		t.Error("something is known without an API server")
	}
	if _, known := c.Annotation("a/b"); known {
		t.Error("an annotation is known without an API server")
	}
	c.WarnPod(kubelet.Pod{Name: "a"}, "Reason", "message")
	c.Record(health.NodeEvent{})
	if owner, err := c.DeviceClass(t.Context(), gpus); owner != "" || err != nil {
		t.Errorf("%q, %v", owner, err)
	}
	_, errNode := c.ReadNode(t.Context())
	_, errPod := c.Pod(t.Context(), kubelet.Pod{UID: "1"})
	for _, err := range []error{errNode, errPod} {
		if !errors.Is(err, ErrOffline) {
			t.Errorf("%v", err)
		}
	}
}

func TestAnnotating(t *testing.T) {
	s, k := newServer(t)
	value := "x"
	s.AddPod(podNamed("p1"))
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
