package agent

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// TestEviction is what the API server is asked, and what it may answer.
func TestEviction(t *testing.T) {
	var asked []string
	status := http.StatusCreated
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.Path, r.Header.Get("Content-Type"), string(body))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		reason := map[int]string{http.StatusConflict: "Conflict", http.StatusTooManyRequests: "TooManyRequests"}[status]
		if status == http.StatusCreated {
			return
		}
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"`+reason+`"}`)
	}))
	t.Cleanup(ts.Close)
	client, err := nodesync.ClientFor(&rest.Config{Host: ts.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	k := NewKube(client, node, slog.New(slog.DiscardHandler))
	pod := types.NamespacedName{Namespace: "team", Name: "a"}
	if err := k.Evict(t.Context(), pod, "uid-a"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"POST /api/v1/namespaces/team/pods/a/eviction", "application/json",
		`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"namespace":"team","name":"a"},` +
			`"deleteOptions":{"preconditions":{"uid":"uid-a"}}}`,
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	status = http.StatusConflict
	if err := k.Evict(t.Context(), pod, "uid-a"); !apierrors.IsConflict(err) {
		t.Errorf("another pod has the name: %v", err)
	}
}

// TestRefusedPodsAreEvicted: two cards with 40 % left each, and pods that ask
// for 60 %. Those that a controller makes anew go; the others stay.
func TestRefusedPodsAreEvicted(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1], refusedFor: 1s")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	for _, name := range []string{"a", "b"} {
		if err := r.tenant(name, "60/4", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"deployed", "bare", "daemon", "static", "started", "senseless"} {
		ask := "60/4"
		if name == "senseless" {
			ask = "0/4"
		}
		if err := r.tenant(name, ask, nil); err == nil {
			t.Fatalf("%s has a card", name)
		}
	}
	r.api.edit("bare", func(p *corev1.Pod) { p.OwnerReferences = nil })
	r.api.edit("daemon", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" })
	r.api.edit("static", func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "uid-static" })
	r.api.edit("started", func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", RestartCount: 1}}
	})
	until(t, "an eviction", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.evicted) > 0
	})
	r.kubelet.Delete("default", "deployed")
	r.api.edit("deployed", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
	r.api.wait(t, "the Event", func() bool { return has(r.api.warnings, "default/deployed SGPUEvicted: refused for 1s: ") })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, evicted := range c.evicted {
		if evicted != "default/deployed uid-deployed" {
			t.Errorf("evicted %q", c.evicted)
		}
	}
}

func TestEvictable(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := wish("a", map[string]string{"nvidia.com/sgpu": "1"}, nil)
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Controller: new(true)}}
		change(p)
		return p
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, tt := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string
	}{
		{"never started", func(*corev1.Pod) {}, ""},
		{"its logger has", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "logger"})
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}, {Name: "logger", State: running}}
		}, ""},
		{"it runs", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: running}}
		}, "container main has started"},
		{"it has run", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		}, "container main has started"},
		{"phase", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, "it has started"},
		{"no controller", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, "no controller would make it anew"},
		{"static", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Node" }, "it is a static pod"},
		{"DaemonSet", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }, "its DaemonSet would make it anew here"},
		{"deleted", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, "it is on its way out"},
	} {
		if got := evictable(pod(tt.change), "nvidia.com/sgpu"); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
