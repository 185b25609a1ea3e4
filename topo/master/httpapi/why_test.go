package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
)

func TestWhy(t *testing.T) {
	api := apiserver.New()
	kube := httptest.NewServer(api)
	t.Cleanup(kube.Close)
	core, err := informers.CoreClient(&rest.Config{Host: kube.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourcePods: resource.MustParse("9")}
	api.Put("nodes", node)
	waits := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"}}
	waits.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
	}}}
	api.Put("pods", waits)
	f := newFixture(t, fabric.ModeSwitchbox)
	h := newServer(f, func(o *Options) { o.Pending = explain.NewLister(core, 5000, 50000, clock.RealClock{}) }).Handler()
	f.put("dragonfly-1", "n1")
	for _, tt := range []struct {
		query string
		code  int
		words string
	}{
		{"?namespace=a&name=x", http.StatusOK, `"reason":"cpu: 1 of `},
		{"?namespace=a&name=y", http.StatusNotFound, "namespace a has no pod and no gang y"},
		{"?namespace=a", http.StatusBadRequest, "ask for"},
		{"", http.StatusBadRequest, "ask for"},
	} {
		w := ask(h, "GET", "/v1/why"+tt.query)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.words) {
			t.Errorf("%s: %d %s, want %d with %q", tt.query, w.Code, w.Body, tt.code, tt.words)
		}
	}
	var a explain.Answer
	if err := json.Unmarshal(ask(h, "GET", "/v1/why?namespace=a&name=x").Body.Bytes(), &a); err != nil || len(a.Groups) == 0 {
		t.Errorf("%+v, error %v: no group of the tree", a, err)
	}
	for _, tt := range []struct {
		body  string
		code  int
		words string
	}{
		{"{kind: Pod, metadata: {name: p}, spec: {containers: [{resources: {limits: {cpu: 1}}}]}}", http.StatusOK, `"fits":true`},
		{"{kind: Pod, metadata: {name: p}, spec: {containers: [{resources: {limits: {cpu: 2}}}]}}", http.StatusOK, `"fits":false`},
		{"{kind: Pod}", http.StatusBadRequest, "document 1: Pod: metadata.name is missing"},
		{
			"{kind: Pod, metadata: {name: p}, spec: {containers: [{}], resourceClaims: [{name: c, resourceClaimTemplateName: none}]}}",
			http.StatusBadRequest, "ResourceClaimTemplate a/none not found",
		},
		{strings.Repeat("#", maxManifest+1), http.StatusBadRequest, "too large"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/plan?namespace=a", strings.NewReader(tt.body)))
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.words) {
			t.Errorf("%.100s: %d %s, want %d with %q", tt.body, w.Code, w.Body, tt.code, tt.words)
		}
	}
	kube.Close()
	h = newServer(f, func(o *Options) { o.Pending = explain.NewLister(core, 5000, 50000, clock.RealClock{}) }).Handler()
	if w := ask(h, "GET", "/v1/why?namespace=a&name=x"); w.Code != http.StatusInternalServerError {
		t.Errorf("no API server: %d", w.Code)
	}
}
