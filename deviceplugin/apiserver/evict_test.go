package apiserver

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/internal/kube"
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
	client, err := kube.ClientFor(&rest.Config{Host: ts.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	k := New(client, node, slog.New(slog.DiscardHandler))
	pod := types.NamespacedName{Namespace: "team", Name: "a"}
	if err := k.Evict(t.Context(), pod, "uid-a"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"POST /api/v1/namespaces/team/pods/a/eviction", "application/json",
		`{"apiVersion":"policy/v1","deleteOptions":{"preconditions":{"uid":"uid-a"}},"kind":"Eviction",` +
			`"metadata":{"name":"a","namespace":"team"}}`,
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	status = http.StatusConflict
	if err := k.Evict(t.Context(), pod, "uid-a"); !apierrors.IsConflict(err) {
		t.Errorf("another pod has the name: %v", err)
	}
}
