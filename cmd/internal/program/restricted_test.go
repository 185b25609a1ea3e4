package program

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/internal/httpserve"
)

// reviews is an API server where the token reader may get both paths, scraper /metrics alone
// and stranger none. It ends with the test, or by stop.
func reviews(t *testing.T) (auth *httpserve.Auth, stop func()) {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			var review authnv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			token := review.Spec.Token
			review.Status.Authenticated = len(review.Spec.Audiences) == 0 && token != "forged"
			review.Status.User.Username = token
			_ = json.NewEncoder(w).Encode(review)
			return
		}
		var review authzv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		path := review.Spec.NonResourceAttributes.Path
		review.Status.Allowed = review.Spec.User == "reader" || review.Spec.User == "scraper" && path == "/metrics"
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(api.Close)
	auth, err := httpserve.NewAuth(&rest.Config{Host: api.URL, QPS: -1}, httpserve.AuthOptions{
		Audience: "test", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return auth, api.Close
}

func gauge(name string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "A test."}))
	return r
}

func bindings() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "train-0") })
}

// What names pods is for the node and for those that the API server authorizes. Everyone
// gets all other metrics.
func TestRestricted(t *testing.T) {
	auth, stop := reviews(t)
	away, stopAway := reviews(t)
	stopAway()
	const node, pod, mapped, headers = "127.0.0.1:4000", "10.0.0.7:4000", "[::ffff:127.0.0.1]:4000", "127.0.0.1"
	for _, tt := range []struct {
		name, from, token string
		open              bool
		auth              *httpserve.Auth
		bindings          int
		pods              bool
		message           string
	}{
		{"the node", node, "", false, auth, 200, true, ""},
		{"the node, where both families are one", mapped, "", false, auth, 200, true, ""},
		{"the node, by IPv6", "[::1]:4000", "", false, auth, 200, true, ""},
		{"the node, without an API server", node, "", false, nil, 200, true, ""},
		{"a pod", pod, "", false, auth, 401, false, "ClusterRole heddle-metrics-reader"},
		{"a pod by IPv6", "[fd00::7]:4000", "", false, auth, 401, false, ""},
		{"no address", "", "", false, auth, 401, false, ""},
		{"a forged token", pod, "forged", false, auth, 401, false, ""},
		{"a user without the right", pod, "stranger", false, auth, 403, false, "may not get the path"},
		{"a user with the right to metrics", pod, "scraper", false, auth, 403, true, ""},
		{"a user with both", pod, "reader", false, auth, 200, true, ""},
		{"the API server is away", pod, "reader", false, away, 503, false, "cannot review"},
		{"there is no API server", pod, "reader", false, nil, 503, false, ""},
		{"open to all", pod, "", true, nil, 200, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &Restricted{Metrics: gauge("heddle_pods"), Path: "/v1/bindings", Handler: bindings(), Open: tt.open, Auth: tt.auth}
			mux := http.NewServeMux()
			mux.Handle("GET /metrics", metrics(gauge("heddle_health"), r))
			mux.Handle("GET /v1/", paths(r))
			ask := func(path string) *httptest.ResponseRecorder {
				request := httptest.NewRequest(http.MethodGet, path, http.NoBody)
				request.RemoteAddr = tt.from
				// A client can write these.
				request.Host = "localhost:9102"
				request.Header.Set("X-Forwarded-For", headers)
				request.Header.Set("X-Real-Ip", headers)
				if tt.token != "" {
					request.Header.Set("Authorization", "Bearer "+tt.token)
				}
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, request)
				return w
			}
			got := ask("/v1/bindings")
			if got.Code != tt.bindings || strings.Contains(got.Body.String(), "train-0") != (tt.bindings == 200) ||
				!strings.Contains(got.Body.String(), tt.message) {
				t.Errorf("bindings: %d %s", got.Code, got.Body)
			}
			if challenge := got.Header().Get("WWW-Authenticate"); (challenge == "Bearer") != (tt.bindings == 401) {
				t.Errorf("%d with the challenge %q", got.Code, challenge)
			}
			scraped := ask("/metrics")
			text := scraped.Body.String()
			if scraped.Code != 200 || !strings.Contains(text, "heddle_health 0") || strings.Contains(text, "heddle_pods") != tt.pods {
				t.Errorf("metrics: %d %s", scraped.Code, text)
			}
			if other := ask("/v1/other"); other.Code != 404 {
				t.Errorf("another path: %d", other.Code)
			}
		})
	}
	stop()
}
