//go:build e2e

package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// gangs puts gangs of all states on the small fabric.
func gangs(t *testing.T) *rig {
	r := small(t)
	for i, node := range []string{"node000005", "node000004", "node000007", "node000006"} {
		r.member("ai", "llama", i, node, runs(3*time.Hour+20*time.Minute))
	}
	for i := range 3 {
		r.member("ai", "next", i, "", rejected("rejected by podgroup ai/next: 2 of 3 fit, group dragonfly-3 is 8 GPUs short", 90*time.Second))
	}
	r.member("ai", "start", 0, "node000000", runs(time.Minute))
	r.member("ai", "start", 1, "node000001", nil)
	r.member("zoo", "crash", 0, "node000009", runs(time.Hour)) // A node that is not ready.
	for i := range 2 {
		r.member("zoo", "done", i, "node000002", ended(50*time.Hour))
	}
	return r
}

// listed is the list of gangs as a person reads it.
const listed = `[...document.querySelectorAll('#gangs .sort')].flatMap((s) => [s.dataset.state,
	...[...s.querySelectorAll('.gang')].map((g) => [g.querySelector('.who').textContent, g.querySelector('time').textContent,
		...[...g.querySelectorAll('.ends > span')].map((e) => e.textContent)].join(' | '))])`

func TestGangs(t *testing.T) {
	r := gangs(t)
	b := open(t, r.server.URL)
	b.load("/")
	b.until(`document.querySelector('#sum-gangs').textContent === '5'`)
	b.click("#tab-gangs")
	want := []string{
		"Unknown", "zoo/crash | 17m | 1 pod on a lost node | dragonfly-4 · 1 node · 8 GPUs",
		"Queued", "ai/next | 120m | rejected by podgroup ai/next: 2 of 3 fit, group dragonfly-3 is 8 GPUs short | 3 pods · 24 GPUs",
		"Starting", "ai/start | 10s | 1 of 2 run | dragonfly-0 · 2 nodes · 16 GPUs",
		"Running", "ai/llama | 3h20m | switchbox-0 · 4 nodes · 32 GPUs",
		"Succeeded", "zoo/done | 2d2h | 2 pods",
	}
	got := value[[]string](b, listed)
	for i := range got {
		if strings.HasPrefix(got[i], "ai/start") {
			got[i] = strings.Replace(got[i], got[i][11:strings.Index(got[i], " | 1 of")], "10s", 1) // It goes on.
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the list (-want +got):\n%s", diff)
	}
	b.shot("gangs-light")

	// Choosing one lights its nodes, and no others.
	b.click(`[data-gang="gang:ai/llama"]`)
	b.until(`document.querySelector('#detail h2')?.textContent === 'ai/llama'`)
	lit := `[...document.querySelectorAll('#map.searching .node.hit')].map((n) => n.ariaLabel.split(',')[0])`
	if diff := cmp.Diff([]string{"node000004", "node000005", "node000006", "node000007"}, value[[]string](b, lit)); diff != "" {
		t.Errorf("lit (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("node000005 node000004 node000007 node000006",
		value[string](b, `[...document.querySelectorAll('#detail .ranks .link')].map((n) => n.textContent).join(' ')`)); diff != "" {
		t.Errorf("ranks (-want +got):\n%s", diff)
	}
	if at := value[string](b, `decodeURIComponent(location.hash)`); at != "#gang:ai/llama" {
		t.Errorf("the address is %s", at)
	}
	b.shot("gangs-light-chosen")
	b.scheme("dark")
	b.shot("gangs-dark-chosen")
	b.scheme("light")

	// A node names the gangs on it, and leads back; then nothing else is lit.
	b.click(`#detail .ranks .link`)
	b.until(`document.querySelector('#detail h2')?.textContent === 'node000005'`)
	if n := value[int](b, `document.querySelectorAll('#map.searching').length`); n != 0 {
		t.Error("a node is chosen and a gang is lit")
	}
	if got := value[string](b, `document.querySelector('#detail .links').textContent`); got != "ai/llama" {
		t.Errorf("the node's gangs are %q", got)
	}
	if got := value[string](b, `document.querySelector('[aria-label^=node000005]').ariaLabel`); !strings.HasSuffix(got, "in use by ai/llama") {
		t.Errorf("the node is called %q", got)
	}
	b.click(`#detail .links .link`)
	b.until(`document.querySelector('#detail h2')?.textContent === 'ai/llama' && document.querySelector('#map.searching')`)
	b.shortcut("Escape")
	b.until(`!document.querySelector('#map.searching') && document.querySelector('#detail h2') === null`)
	b.clean()
}

// member is a pod of a gang that asks for 8 GPUs; of no node it waits, since two
// hours.
func (r *rig) member(namespace, gang string, rank int, node string, change func(*corev1.Pod)) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprint(gang, "-", rank), Labels: map[string]string{wellknown.GangName: gang},
			CreationTimestamp: metav1.NewTime(time.Now().Add(-2 * time.Hour)),
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "train", Resources: whole(8),
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if node != "" {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-10 * time.Second)),
		}}
	}
	if change != nil {
		change(p)
	}
	r.api.Put("pods", p)
}

func runs(ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-ago))},
		}}}
	}
}

func ended(ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now().Add(-ago))},
		}}}
	}
}

func rejected(why string, ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/16 nodes are available: " + why + ".", LastTransitionTime: metav1.NewTime(time.Now().Add(-ago)),
		}}
	}
}
