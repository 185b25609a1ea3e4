package plugin

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// handle is what of the framework the plugin calls; the whole framework runs
// in cmd/heddle-scheduler's tests.
type handle struct {
	framework.Handle
	factory   informers.SharedInformerFactory
	activated map[string]bool
	waiting   map[types.UID]*waitingPod
	events    []string
}

func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }

func (h *handle) KubeConfig() *restclient.Config { return nil }

func (h *handle) ProfileName() string { return "heddle-scheduler" }

func (h *handle) Activate(_ logr.Logger, pods map[string]*corev1.Pod) {
	for name := range pods {
		h.activated[name] = true
	}
}

func (h *handle) GetWaitingPod(uid types.UID) framework.WaitingPod {
	if w := h.waiting[uid]; w != nil {
		return w
	}
	return nil
}

func (h *handle) IterateOverWaitingPods(call func(framework.WaitingPod)) {
	for _, w := range h.waiting {
		call(w)
	}
}

func (h *handle) EventRecorder() events.EventRecorderLogger { return recorder{h} }

type recorder struct{ h *handle }

func (r recorder) WithLogger(logr.Logger) events.EventRecorderLogger { return r }

func (r recorder) Eventf(about, _ runtime.Object, _, reason, _, note string, args ...any) {
	r.h.events = append(r.h.events, about.(*corev1.Pod).Name+" "+reason+" "+fmt.Sprintf(note, args...))
}

type waitingPod struct {
	framework.WaitingPod
	pod     *corev1.Pod
	verdict string
}

func (w *waitingPod) GetPod() *corev1.Pod { return w.pod }

func (w *waitingPod) Allow(string) { w.verdict = "allowed" }

func (w *waitingPod) Reject(_, why string) bool {
	w.verdict = why
	return true
}

// quiet is a plugin without what runs in the background.
func quiet(t *testing.T) (*Plugin, *handle) {
	t.Helper()
	h := &handle{
		factory: informers.NewSharedInformerFactory(fake.NewClientset(), 0), activated: map[string]bool{}, waiting: map[types.UID]*waitingPod{},
	}
	args, err := readArgs(&runtime.Unknown{Raw: []byte(`{"topoMaster": ""}`)})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(t.Context(), args, h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return p, h
}

func podOf(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: labels}}
}

func of(name, least string) map[string]string {
	labels := map[string]string{wellknown.GangName: name}
	if least != "" {
		labels[wellknown.GangMinAvailable] = least
	}
	return labels
}

// known puts pods where PreEnqueue looks whether they exist.
func (h *handle) known(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if err := h.factory.Core().V1().Pods().Informer().GetStore().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
}

// planOf gives pods places as a plan does.
func (p *Plugin) planOf(e *entry, at map[types.UID]string) {
	for uid, node := range at {
		e.members[uid].stage, e.members[uid].node = planned, node
	}
	e.deadline = p.book.now().Add(e.gang.Timeout)
	p.book.promise()
}

// state is a cycle's state without anything in it.
type state struct{ framework.CycleState }

func (state) IsPodGroupSchedulingCycle() bool { return false }

func (state) Read(framework.StateKey) (framework.StateData, error) {
	return nil, framework.ErrNotFound
}
