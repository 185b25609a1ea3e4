package worker

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/kube"
)

// TestRequests looks at what goes over the wire; test/e2e at what a real API
// server makes of it.
func TestRequests(t *testing.T) {
	var got []string
	answer, code := `{"spec": {"nvlinkDomain": "d"}, "status": {"walk": ["leaf-a"]}}`, http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, strings.TrimSpace(r.Method+" "+r.URL.String()+" "+r.Header.Get("Content-Type")+" "+string(body)))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	client, err := kube.ClientFor(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	p := NewPublisher(client, "n1")
	ctx := t.Context()
	if nt, err := p.Load(ctx); err != nil || nt.Spec.NVLinkDomain != "d" {
		t.Errorf("%+v, %v", nt, err)
	}
	if _, err := p.Apply(ctx, "u1", &v1alpha1.NodeTopologySpec{}); err != nil {
		t.Error(err)
	}
	if nt, err := p.Beat(ctx, time.Unix(1e9, 0).UTC()); err != nil || nt.Status.Walk[0] != "leaf-a" {
		t.Errorf("%+v, %v", nt, err)
	}
	const path = "/apis/topology.heddle.dev/v1alpha1/nodetopologies/n1"
	want := []string{
		"GET " + path + "?resourceVersion=0",
		"PATCH " + path + "?fieldManager=heddle-topo-worker&force=true application/apply-patch+yaml " +
			`{"apiVersion":"topology.heddle.dev/v1alpha1","kind":"NodeTopology","metadata":{"name":"n1","ownerReferences":` +
			`[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u1"}]},"spec":{"rails":[]}}`,
		"PATCH " + path + "/status?fieldManager=heddle-topo-worker application/merge-patch+json " +
			`{"status":{"heartbeatTime":"2001-09-09T01:46:40Z"}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	code, answer = http.StatusNotFound, `{"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}`
	if nt, err := p.Beat(ctx, time.Now()); nt != nil || err != nil {
		t.Errorf("%v, %v", nt, err)
	}
	code = http.StatusUnprocessableEntity
	answer = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "message": "spec.rails: too many", "code": 422}`
	if _, err := p.Apply(ctx, "u1", &v1alpha1.NodeTopologySpec{}); err == nil || !strings.Contains(err.Error(), "spec.rails: too many") {
		t.Errorf("error %v does not state what is wrong", err)
	}
}
