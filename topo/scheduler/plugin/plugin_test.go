package plugin

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
)

func TestArgs(t *testing.T) {
	for _, tt := range []struct{ name, text, err string }{
		{"nothing", ``, ""},
		{"all", `{"topoMaster":"https://m:9001/node_group","interval":"1s","maxAge":"1m","withoutMap":"wait","domains":{"vendor":"metax-tech.com","card":"gpu","company":"a.com"},"gpuAware":{"weight":2,"loss.weight":0},"placement":"spread"}`, ""},
		{"a typo", `{"topomasters":""}`, "unknown field"},
		{"no address", `{"topoMaster":"master"}`, `"master" is not an http address`},
		{"a token over http", `{"topoMaster":"http://m/node_group","tokenFile":"/t"}`, "not an https address"},
		{"an authority without topo-master", `{"topoMaster":"","caFile":"/ca.crt"}`, "not an https address"},
		{"secured", `{"topoMaster":"https://m/node_group","caFile":"/ca.crt","tokenFile":"/t"}`, ""},
		{"maxAge", `{"maxAge":"1s"}`, "maxAge is shorter than interval"},
		{"withoutMap", `{"withoutMap":"perhaps"}`, `"perhaps" is neither wait nor place`},
		{"placement", `{"placement":"random"}`, `unsupported value "random"`},
		{"reserveAfter", `{"reserveAfter":"-1h"}`, "reserveAfter: -1h0m0s is negative"},
		{"spares", `{"spares":"101%"}`, `spares: "101%" is neither a number of nodes nor a percentage`},
		{"fewer than no spares", `{"spares":-1}`, `spares: "-1" is neither a number of nodes nor a percentage`},
		{"a percentage of spares", `{"spares":"5%","sparesPriority":7}`, ""},
		{"no reservation", `{"reserveAfter":"0s"}`, ""},
		{"weight", `{"gpuAware":{"weight":-1}}`, "weight -1 is not"},
		{"weights that are no whole numbers", `{"gpuAware":{"weight":1,"loss.weight":0.5}}`, ""},
		{"names and units", `{"resources":{"sgpu":"nvidia.com/gpu","vmemory":"nvidia.com/gpumem","vmemoryUnit":"MiB"},"shareDefaults":{"vcore":0}}`, ""},
		{"one name for two", `{"resources":{"sgpu":"a.com/x","vcore":"a.com/x"}}`, "a.com/x is the name of resources.sgpu too"},
		{"unit", `{"resources":{"vmemoryUnit":"KiB"}}`, `unsupported value "KiB"`},
		{"shareDefaults", `{"shareDefaults":{"vcore":101}}`, "101 is not between 0 and 100"},
		{"an amount of memory", `{"shareDefaults":{"vmemory":4}}`, ""},
		{"two defaults of memory", `{"shareDefaults":{"vmemory":4,"vmemoryPercentage":25}}`, "take one of the two"},
		{"policy", `{"shareDefaults":{"policy":"best"}}`, `unsupported value "best"`},
		{"domain", `{"domains":{"vendor":"No Domain"}}`, "a lowercase RFC 1123 subdomain"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readArgs(&runtime.Unknown{Raw: []byte(tt.text)})
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

// What is counted GPU by GPU does not count in NodeResourcesFit's way, under any name.
func TestIgnoredNames(t *testing.T) {
	args, err := readArgs(&runtime.Unknown{Raw: []byte(`{"domains":{"vendor":"nvidia.com"},"resources":{"vmemory":"nvidia.com/gpumem","vmemoryPercentage":"a.com/p"}}`)})
	want := []corev1.ResourceName{"nvidia.com/vcore", "nvidia.com/gpumem", "a.com/p"}
	if err != nil || !slices.Equal(args.Ignored, want) {
		t.Errorf("ignores %q, want %q, error %v", args.Ignored, want, err)
	}
}

// handle is what of the framework the plugin calls without a cycle; the whole
// framework runs in cmd/heddle-scheduler's tests.
type handle struct {
	framework.Handle
	client  *fake.Clientset
	factory informers.SharedInformerFactory
}

func (h *handle) ClientSet() kubernetes.Interface { return h.client }

func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }

func (*handle) KubeConfig() *restclient.Config { return nil }

func (*handle) ProfileName() string { return "heddle-scheduler" }

// stopped is a plugin of which the controller has ended.
func stopped(t *testing.T) (*Plugin, *handle) {
	t.Helper()
	client := fake.NewClientset()
	h := &handle{client: client, factory: informers.NewSharedInformerFactory(client, 0)}
	args, err := readArgs(&runtime.Unknown{Raw: []byte(`{"topoMaster": ""}`)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	p, err := newPlugin(ctx, args, h, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil, &Queue{})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return p, h
}

func podOf(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: labels}}
}

func in(name, least string) map[string]string {
	return map[string]string{wellknown.GangName: name, wellknown.GangMinAvailable: least}
}

// The queue may still have a pod that is deleted: it completes no gang, and is not
// remembered.
func TestPreEnqueueOfADeletedPod(t *testing.T) {
	p, h := stopped(t)
	b := podOf("b", in("x", "2"))
	if err := h.factory.Core().V1().Pods().Informer().GetStore().Add(b); err != nil {
		t.Fatal(err)
	}
	if s := p.PreEnqueue(t.Context(), podOf("plain", nil)); s != nil {
		t.Errorf("a pod of no gang: %v", s)
	}
	const waits = "podgroup x waits for pods: 1 of 2 exist"
	if s := p.PreEnqueue(t.Context(), b); s.Message() != waits {
		t.Errorf("the first: %v", s)
	}
	if s := p.PreEnqueue(t.Context(), podOf("ghost", in("x", "2"))); s.IsSuccess() {
		t.Error("a pod that does not exist completes a gang")
	}
	if s := p.PreEnqueue(t.Context(), b); s.Message() != waits {
		t.Errorf("after the deleted one: %v", s)
	}
}

func TestSignPod(t *testing.T) {
	p, _ := stopped(t)
	selecting := podOf("selecting", nil)
	selecting.Annotations = map[string]string{"nvidia.com/use-gpuuuid": "GPU-a"}
	shares := podOf("shares", nil)
	shares.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/sgpu": resource.MustParse("1")}}}}
	for _, tt := range []struct {
		pod  *corev1.Pod
		want bool
	}{{podOf("plain", map[string]string{"app": "x"}), true}, {podOf("gang", in("x", "2")), false}, {selecting, false}, {shares, false}} {
		fragments, s := p.SignPod(t.Context(), tt.pod)
		if s.IsSuccess() != tt.want || len(fragments) > 0 {
			t.Errorf("%s: %v, %v", tt.pod.Name, fragments, s)
		}
	}
}

// A claim wakes pods that can use its devices, or that wait for it.
func TestPodsWakeOnClaims(t *testing.T) {
	p, _ := stopped(t)
	claim := func(allocated bool) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}
		if allocated {
			c.Status.Allocation = &resourceapi.AllocationResult{}
		}
		return c
	}
	plain, own, named := podOf("plain", nil), podOf("own", nil), podOf("named", nil)
	own.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimTemplateName: new("t")}}
	named.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: new("c")}}
	for _, tt := range []struct {
		what         string
		older, newer any
		wake         []*corev1.Pod
	}{
		{"made", nil, claim(false), []*corev1.Pod{own, named}},
		{"allocated", claim(false), claim(true), []*corev1.Pod{named}},
		{"free again", claim(true), claim(false), []*corev1.Pod{plain, own, named}},
		{"deleted", claim(true), nil, []*corev1.Pod{plain, own, named}},
	} {
		for _, pod := range []*corev1.Pod{plain, own, named} {
			hint, err := p.afterClaim(logr.Discard(), pod, tt.older, tt.newer)
			if woken := hint == framework.Queue; err != nil || woken != slices.Contains(tt.wake, pod) {
				t.Errorf("a claim is %s, and pod %s is woken: %v, %v", tt.what, pod.Name, woken, err)
			}
		}
	}
}
