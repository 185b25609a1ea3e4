package plugin

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

func TestArgs(t *testing.T) {
	for _, tt := range []struct{ name, text, err string }{
		{"nothing", ``, ""},
		{"all", `{"topoMaster":"https://m:9001/node_group","interval":"1s","maxAge":"1m","withoutMap":"wait","domains":{"vendor":"metax-tech.com","card":"gpu","company":"a.com"},"gpuAware":{"weight":2,"loss.weight":0},"placement":"spread"}`, ""},
		{"a slip", `{"topomasters":""}`, "unknown field"},
		{"no address", `{"topoMaster":"master"}`, `"master" is no http address`},
		{"a token in the clear", `{"topoMaster":"http://m/node_group","tokenFile":"/t"}`, "no https address"},
		{"an authority for nobody", `{"topoMaster":"","caFile":"/ca.crt"}`, "no https address"},
		{"secured", `{"topoMaster":"https://m/node_group","caFile":"/ca.crt","tokenFile":"/t"}`, ""},
		{"maxAge", `{"maxAge":"1s"}`, "maxAge is the shorter one"},
		{"withoutMap", `{"withoutMap":"perhaps"}`, `"perhaps" is neither wait nor place`},
		{"placement", `{"placement":"random"}`, `"random" is neither binpack nor spread`},
		{"weight", `{"gpuAware":{"weight":-1}}`, "weight -1 is not"},
		{"domain", `{"domains":{"vendor":"No Domain"}}`, "is no DNS domain"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readArgs(&runtime.Unknown{Raw: []byte(tt.text)})
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

func TestPreEnqueueWaitsForTheGang(t *testing.T) {
	p, h := quiet(t)
	a, b := podOf("a", of("x", "2")), podOf("b", of("x", "2"))
	h.known(t, a, b)
	if s := p.PreEnqueue(t.Context(), podOf("plain", nil)); s != nil {
		t.Errorf("a pod of no gang: %v", s)
	}
	if s := p.PreEnqueue(t.Context(), a); s.Message() != "podgroup x waits for pods: 1 of 2 exist" {
		t.Errorf("the first: %v", s)
	}
	if s := p.PreEnqueue(t.Context(), b); s != nil {
		t.Errorf("the last: %v", s)
	}
	p.rouse()
	if diff := cmp.Diff(map[string]bool{"default/a": true, "default/b": true}, h.activated); diff != "" {
		t.Errorf("called (-want +got):\n%s", diff)
	}
	// The queue may still have a pod that is gone.
	p.gone(a)
	if s := p.PreEnqueue(t.Context(), podOf("ghost", of("x", "2"))); s.IsSuccess() {
		t.Error("a pod that does not exist completes a gang")
	}
	if s := p.PreEnqueue(t.Context(), b); s.IsSuccess() {
		t.Error("the ghost stays")
	}
}

func TestPodGroupObjects(t *testing.T) {
	p, h := quiet(t)
	object := func(group string, least int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group + "/v1alpha1", "kind": "PodGroup",
			"metadata": map[string]any{"name": "nginx", "namespace": "default"}, "spec": map[string]any{"minMember": least},
		}}
	}
	a := podOf("a", of("nginx", ""))
	h.known(t, a)
	if s := p.PreEnqueue(t.Context(), a); !strings.Contains(s.Message(), "no PodGroup object says it") {
		t.Errorf("without an object: %v", s)
	}
	p.object(gang.APIGroup, object(gang.APIGroup, 2), false)
	if s := p.PreEnqueue(t.Context(), a); !strings.Contains(s.Message(), "1 of 2 exist") {
		t.Errorf("with one for two: %v", s)
	}
	p.object(gang.APIGroup, object(gang.APIGroup, 1), false)
	p.rouse()
	if s := p.PreEnqueue(t.Context(), a); s != nil || !h.activated["default/a"] {
		t.Errorf("with one for one: %v, called %v", s, h.activated)
	}
	p.object(gang.APIGroupXK8s, object(gang.APIGroupXK8s, 3), false)
	p.book.mu.Lock()
	e := p.book.of["a"]
	p.book.settle(e)
	if e.fault == nil || !strings.Contains(e.fault.Error(), "say 1 and 3 members") {
		t.Errorf("two objects: %v", e.fault)
	}
	p.book.mu.Unlock()
	p.object(gang.APIGroupXK8s, object(gang.APIGroupXK8s, 3), true)
	p.object(gang.APIGroup, object(gang.APIGroup, 1), true)
	if s := p.PreEnqueue(t.Context(), a); s.IsSuccess() {
		t.Error("deleted objects still say how many")
	}
	p.gone(a)
	if len(p.book.gangs) != 0 || len(p.book.of) != 0 {
		t.Errorf("the book keeps %v", p.book.gangs)
	}
}

func TestPermitIsAllOrNothing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		third  func(p *Plugin, c *corev1.Pod)
		want   string
		stages map[types.UID]stage
	}{
		{
			"the third comes", func(p *Plugin, c *corev1.Pod) {
				_ = p.Reserve(context.Background(), state{}, c, "n")
				if s, _ := p.Permit(context.Background(), nil, c, "n"); !s.IsSuccess() {
					panic(s)
				}
			},
			"allowed",
			map[types.UID]stage{"a": released, "b": released, "c": released},
		},
		{
			"the third fails", func(p *Plugin, c *corev1.Pod) {
				_ = p.Reserve(context.Background(), state{}, c, "n")
				p.Unreserve(context.Background(), nil, c, "n")
			},
			"rejected by podgroup x: member c lost its place on node n",
			map[types.UID]stage{"a": pending, "b": pending, "c": pending},
		},
		{
			"the third is deleted", func(p *Plugin, c *corev1.Pod) { p.gone(c) },
			"rejected by podgroup x: podgroup x waits for pods: 2 of 3 exist",
			map[types.UID]stage{"a": pending, "b": pending},
		},
		{
			"time is up", func(p *Plugin, _ *corev1.Pod) {
				p.book.now = func() time.Time { return time.Now().Add(time.Hour) }
				p.expire()
			},
			"rejected by podgroup x: 2 of 3 had a node after 1m0s",
			map[types.UID]stage{"a": pending, "b": pending, "c": pending},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, h := quiet(t)
			pods := []*corev1.Pod{podOf("a", of("x", "3")), podOf("b", of("x", "3")), podOf("c", of("x", "3"))}
			h.known(t, pods...)
			for _, pod := range pods {
				p.PreEnqueue(t.Context(), pod)
			}
			e := p.book.of["a"]
			p.planOf(e, map[types.UID]string{"a": "n", "b": "m", "c": "n"})
			for _, pod := range pods[:2] {
				node := e.members[pod.UID].node
				if s := p.Reserve(t.Context(), state{}, pod, node); s != nil {
					t.Fatal(s)
				}
				s, wait := p.Permit(t.Context(), nil, pod, node)
				if !s.IsWait() || wait < e.gang.Timeout {
					t.Fatalf("permit: %v for %s", s, wait)
				}
				h.waiting[pod.UID] = &waitingPod{pod: pod}
			}
			tt.third(p, pods[2])
			stages := map[types.UID]stage{}
			for uid, m := range e.members {
				stages[uid] = m.stage
			}
			if diff := cmp.Diff(tt.stages, stages); diff != "" {
				t.Errorf("stages (-want +got):\n%s", diff)
			}
			for _, w := range h.waiting {
				if w.verdict != tt.want {
					t.Errorf("%s: %q, want %q", w.pod.Name, w.verdict, tt.want)
				}
			}
			if len(p.book.promises) > 0 {
				t.Errorf("promises are left: %v", p.book.promises)
			}
		})
	}
}

func TestReserveElsewhereIsRefused(t *testing.T) {
	p, h := quiet(t)
	a := podOf("a", of("x", "1"))
	h.known(t, a)
	p.PreEnqueue(t.Context(), a)
	p.planOf(p.book.of["a"], map[types.UID]string{"a": "n"})
	if s := p.Reserve(t.Context(), state{}, a, "m"); s.IsSuccess() {
		t.Error("a member is reserved where the plan has it not")
	}
}

func TestMembersChoose(t *testing.T) {
	p, _ := quiet(t)
	class := func(name, use string) *fit.Class {
		pod := podOf(name, of("x", "2"))
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
		pod.Annotations = map[string]string{"nvidia.com/use-gpuuuid": use}
		p.come(pod)
		return p.book.of[pod.UID].members[pod.UID].class
	}
	if a, b, c := class("a", ""), class("b", "GPU-1"), class("c", "GPU-1"); a.Key == b.Key || b.Key != c.Key {
		t.Error("classes do not tell who chooses which GPUs")
	}
}

func TestSignPod(t *testing.T) {
	p, _ := quiet(t)
	steered := podOf("steered", nil)
	steered.Annotations = map[string]string{"nvidia.com/use-gpuuuid": "GPU-a"}
	shares := podOf("shares", nil)
	shares.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/sgpu": {}}}}}
	for _, tt := range []struct {
		pod  *corev1.Pod
		want bool
	}{{podOf("plain", map[string]string{"app": "x"}), true}, {podOf("gang", of("x", "2")), false}, {steered, false}, {shares, false}} {
		fragments, s := p.SignPod(t.Context(), tt.pod)
		if s.IsSuccess() != tt.want || len(fragments) > 0 {
			t.Errorf("%s: %v, %v", tt.pod.Name, fragments, s)
		}
	}
}

func TestOnlyTheLeaderOfARefusedGangIsWorthATry(t *testing.T) {
	p, h := quiet(t)
	a, b := podOf("a", of("x", "2")), podOf("b", of("x", "2"))
	h.known(t, a, b)
	p.PreEnqueue(t.Context(), a)
	p.PreEnqueue(t.Context(), b)
	e := p.book.of["a"]
	p.book.refuse(e, "no room", "b")
	e.members["a"].told = true
	hint := func(pod *corev1.Pod) framework.QueueingHint {
		got, err := p.afterNode(logr.Discard(), pod, nil, &corev1.Node{})
		if err != nil {
			t.Error(err)
		}
		return got
	}
	if hint(a) != framework.QueueSkip || hint(b) != framework.Queue || hint(podOf("plain", nil)) != framework.Queue {
		t.Error("not the leader alone")
	}
	p.rouse() // What was asked for before.
	clear(h.activated)
	p.wake(types.NamespacedName{})
	p.rouse()
	if diff := cmp.Diff(map[string]bool{"default/b": true}, h.activated); diff != "" {
		t.Errorf("called (-want +got):\n%s", diff)
	}
	p.gone(b)
	if e.leader != "a" {
		t.Errorf("the leader is %q once b is gone", e.leader)
	}
}

func TestIncompleteGangsAndRemarksAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := quiet(t)
		a := podOf("a", nil)
		a.Annotations = map[string]string{
			wellknown.KoordinatorName: "x", wellknown.KoordinatorMinAvailable: "2", wellknown.KoordinatorTotalNumber: "9",
		}
		h.known(t, a)
		p.PreEnqueue(t.Context(), a)
		p.notice()
		remark := "a GangRemark annotation gang.scheduling.koordinator.sh/total-number is ignored"
		if diff := cmp.Diff([]string{remark}, h.events); diff != "" {
			t.Errorf("at first (-want +got):\n%s", diff)
		}
		<-time.After(time.Minute)
		p.notice()
		p.notice()
		want := []string{remark, "a GangIncomplete podgroup x waits for pods: 1 of 2 exist"}
		if diff := cmp.Diff(want, h.events); diff != "" {
			t.Errorf("later (-want +got):\n%s", diff)
		}
	})
}
