//go:build e2e

package page

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waiting is a gang of six pods where four nodes are free: ai/next waits for a reservation, and
// ai/late, a pod of no gang, for any node.
func waiting(t *testing.T) *rig {
	r := small(t)
	for i, node := range []string{"node000005", "node000004", "node000007", "node000006"} {
		r.member("ai", "llama", i, node, func(p *corev1.Pod) {
			runs(3*time.Hour + 20*time.Minute)(p)
			started := metav1.NewTime(time.Now().Add(-200 * time.Minute))
			p.Status.StartTime = &started
			p.Annotations = map[string]string{"heddle.dev/expected-duration": "10h"}
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "llama", UID: "job", Controller: new(true)}}
		})
	}
	for i := range 6 {
		r.member("ai", "next", i, "", func(p *corev1.Pod) {
			rejected("rejected by podgroup ai/next: room is reserved from 2026-11-22T15:04:00Z: 3 of 6 fit", 90*time.Second)(p)
			p.Labels["pod-group.scheduling.sigs.k8s.io/min-available"] = "6"
		})
	}
	r.member("ai", "late", 0, "", func(p *corev1.Pod) { p.Labels = nil })
	return r
}

// why is what the details have about what waits, as a person reads it.
const why = `[...document.querySelectorAll('#detail section[aria-label="Why it waits"] > *')].map((e) =>
	e.matches('ul') ? [...e.children].map((li) => '- ' + [...li.children].map((c) => c.textContent).join(' | ')).join('\n') : e.textContent).join('\n')`

// The page has the answer of heddle why: the groups tried, what each lacks and who holds it, the
// reservation that the gang waits for, and what there is room for now.
func TestWhyOnThePage(t *testing.T) {
	r := waiting(t)
	b := open(t, r.server.URL)
	b.load("/#gang:ai/next")
	b.until(`document.querySelector('#detail section[aria-label="Why it waits"]') !== null`)
	got := value[string](b, why)
	for _, want := range []string{
		"0 of 6 pods have a node; 6 must before any starts.",
		"room is reserved from 2026-11-22T15:04:00Z",
		"- 8 nvidia.com/gpu | 6 pods",
		"Groups tried\n- ", "would take 2 of 6", "held by ai/llama of Job/llama: ", "nvidia.com/gpu, for 3h20m, until ",
		"Room now\n- ", "cordoned", "nvidia.com/gpu: 0 of 8 free, asked for 8 | ",
		"heddle why next -n ai",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	b.shot("why-light")
	// A gang that has its nodes waits for nothing, and no question is asked about it.
	b.load("/?again#gang:ai/llama")
	b.until(`document.querySelector('#detail h2')?.textContent === 'ai/llama'`)
	if n := value[int](b, `document.querySelectorAll('#detail section').length`); n != 0 {
		t.Error("a gang that runs waits for something")
	}
	b.clean()
}

// The form plans a manifest as heddle plan does, on the cluster as it is.
func TestPlanOnThePage(t *testing.T) {
	r := waiting(t)
	b := open(t, r.server.URL)
	b.load("/")
	b.shortcut("j")
	b.until(`document.querySelector('#plan').open`)
	ask := func(pods, want string) {
		t.Helper()
		job := `{apiVersion: batch/v1, kind: Job, metadata: {name: asked}, spec: {parallelism: ` + pods +
			`, template: {spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 8}}}]}}}}`
		value[bool](b, `(() => { document.querySelector('#plan textarea').value = '`+job+`'; return true })()`)
		b.click(`#plan button[value=plan]`)
		b.until(`document.querySelector('#plan output').textContent.includes('` + want + `')`)
	}
	ask("2", "default/asked, 2 pods: fits now in ")
	b.shot("plan-light")
	ask("60", "default/asked, 60 pods: does not fit now")
	ask("60000", "at most 10000 are planned")
	b.click(`#plan button[value=close]`)
	b.until(`!document.querySelector('#plan').open`)
}
