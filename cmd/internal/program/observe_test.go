package program

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/internal/httpserve"
	"github.com/heddle-dev/heddle/test/docs"
)

func TestServe(t *testing.T) {
	if err := Serve(t.Context(), slog.Default(), "no-such-host.invalid:1", prometheus.NewRegistry(), nil, nil, nil); err == nil {
		t.Error("an address that cannot be listened on is no error")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	registry := NewRegistry("v1.2.3")
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "heddle_test", Help: "A test."}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	healthy := func() string { return "" }
	more := &Restricted{Metrics: prometheus.NewRegistry(), Path: "/v1/more", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "more")
	})}
	go func() {
		done <- Serve(ctx, slog.Default(), address, registry, healthy, func() string { return "not yet" }, more)
	}()
	get := func(path string) (int, string) {
		for {
			resp, err := http.Get("http://" + address + path)
			if err != nil {
				continue // not listening yet
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, string(body)
		}
	}
	for _, tt := range []struct {
		path string
		code int
		body string
	}{{"/healthz", 200, "ok"}, {"/readyz", 503, "not yet"}, {"/metrics", 200, "heddle_test 0"}, {"/metrics", 200, `version="v1.2.3"} 1`}, {"/v1/more", 200, "more"}, {"/v1/less", 404, ""}} {
		if code, body := get(tt.path); code != tt.code || !strings.Contains(body, tt.body) {
			t.Errorf("%s: %d %q", tt.path, code, body)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

var update = flag.Bool("update", false, "write "+docs.Observability)

// Each daemon's metric is 0 while what is written is not what it uses.
func TestConfigValid(t *testing.T) {
	dir := t.TempDir()
	write := func(mode string) {
		t.Helper()
		for name, text := range map[string]string{"version": "v1", "cluster-config": "mode: " + mode} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("native")
	configs, err := config.NewWatcher(dir, config.Uncompiled{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	configs.Every = time.Second
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- configs.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	r := prometheus.NewRegistry()
	r.MustRegister(ConfigValid("heddle-device-plugin", configs), ConfigValid("heddle-topo-worker", configs))
	values := func() map[string]float64 {
		families, err := r.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "heddle_config_valid" {
			t.Fatalf("%v, %v", families, err)
		}
		all := map[string]float64{}
		for _, m := range families[0].GetMetric() {
			all[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
		return all
	}
	for _, step := range []struct {
		mode string
		want float64
	}{{"native", 1}, {"natvie", 0}, {"sgpu", 1}} {
		if step.mode != "native" {
			write(step.mode)
			<-configs.Changed()
		}
		want := map[string]float64{"heddle-device-plugin": step.want, "heddle-topo-worker": step.want}
		if diff := cmp.Diff(want, values()); diff != "" {
			t.Errorf("mode %s (-want +got):\n%s", step.mode, diff)
		}
	}
	docs.Section(t, "../../..", docs.Observability, "configuration", docs.Metrics(t, r), *update)
}

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
	auth, err := httpserve.NewAuth(&rest.Config{Host: api.URL, QPS: -1}, "test", slog.New(slog.DiscardHandler))
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
