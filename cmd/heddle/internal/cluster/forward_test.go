package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/test/clitest"
)

// asked is what get has of a server's pod p.
func asked(ctx context.Context, t *testing.T, api http.Handler) (string, error) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	client, err := kube.ClientFor(config, "test")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "heddle-system", Name: "p"}}
	body, err := (&Client{client, config}).get(ctx, pod, "9102", "/v1/bindings")
	return string(body), err
}

func TestForward(t *testing.T) {
	for _, tt := range []struct {
		name, port string
		pod        http.HandlerFunc
		want, err  string
	}{
		{"it answers", "9102", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(r.Method + " " + r.URL.Path + " at " + r.Host))
		}, "GET /v1/bindings at localhost:9102", ""},
		{"it rejects", "9102", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no token\nof any kind", http.StatusUnauthorized)
		}, "", "ask for /v1/bindings: 401 Unauthorized: no token"},
		{"nothing listens there", "9103", nil, "", "forward port 9102: connect to localhost:9102: connection refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := asked(t.Context(), t, clitest.Forward(tt.port, tt.pod))
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// An API server, or a pod, that does not answer keeps no command waiting.
func TestForwardInTime(t *testing.T) {
	silent := make(chan struct{})
	defer close(silent)
	wait := func(_ http.ResponseWriter, _ *http.Request) { <-silent }
	for name, api := range map[string]http.HandlerFunc{"the API server": wait, "the pod": clitest.Forward("9102", http.HandlerFunc(wait))} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := asked(ctx, t, api); err == nil || ctx.Err() == nil || !strings.Contains(err.Error(), "deadline exceeded") {
			t.Errorf("%s is silent: %v", name, err)
		}
	}
}
