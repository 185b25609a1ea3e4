package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/internal/httpserve"
	"github.com/heddle-dev/heddle/topo/fabric"
)

func TestTokenAuth(t *testing.T) {
	reviews, broken := 0, false
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reviews++
		w.Header().Set("Content-Type", "application/json")
		switch {
		case broken:
			http.Error(w, "down", http.StatusInternalServerError)
		case r.URL.Path == "/apis/authentication.k8s.io/v1/tokenreviews":
			var review authnv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			bound, own := review.Spec.Token == "bound", len(review.Spec.Audiences) > 0
			if own && (len(review.Spec.Audiences) != 1 || review.Spec.Audiences[0] != Audience) {
				t.Errorf("audiences %v", review.Spec.Audiences)
			}
			// An authenticator that knows no audiences names none.
			review.Status.Authenticated = review.Spec.Token != "forged" && (bound == own || review.Spec.Token == "unaware")
			review.Status.User.Username = review.Spec.Token
			if bound && own {
				review.Status.User.Username, review.Status.Audiences = "alice", review.Spec.Audiences
			}
			_ = json.NewEncoder(w).Encode(review)
		default:
			var review authzv1.SubjectAccessReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			review.Status.Allowed = review.Spec.User == "alice" && review.Spec.NonResourceAttributes.Path == "/node_group" &&
				review.Spec.NonResourceAttributes.Verb == "get"
			_ = json.NewEncoder(w).Encode(review)
		}
	}))
	defer api.Close()
	f := newFixture(t, fabric.ModeSwitchbox)
	f.put("dragonfly-1", "n1")
	server := newServer(f, func(o *Options) {
		var err error
		if o.Auth, err = httpserve.NewAuth(&rest.Config{Host: api.URL, QPS: -1}, Audience, o.Log); err != nil {
			t.Fatal(err)
		}
		o.Alive = func() string { return "" }
	})
	h := server.Handler()
	for _, tt := range []struct {
		name, path, authorization string
		code, reviews             int
	}{
		{"no token", "/node_group", "", 401, 0},
		{"no bearer", "/node_group", "Basic YTpi", 401, 0},
		{"a forged token", "/node_group", "Bearer forged", 401, 2},
		{"a user without access", "/node_group", "Bearer bob", 403, 3},
		{"a user with access", "/node_group", "Bearer alice", 200, 3},
		{"a token for topo-master", "/node_group", "Bearer bound", 200, 2},
		{"a token of an authenticator without audiences", "/node_group", "Bearer unaware", 403, 3},
		{"again, from the cache", "/node_group", "Bearer alice", 200, 0},
		{"not that path", "/v1/topology", "Bearer alice", 403, 3},
		{"a probe", "/healthz", "", 200, 0},
		{"metrics", "/metrics", "", 401, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := reviews
			w := ask(h, "GET", tt.path, "Authorization", tt.authorization)
			if w.Code != tt.code || reviews-before != tt.reviews {
				t.Errorf("%d after %d reviews, want %d after %d", w.Code, reviews-before, tt.code, tt.reviews)
			}
			if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") != "Bearer" {
				t.Error("no challenge")
			}
		})
	}
	broken = true
	if w := ask(h, "GET", "/node_group", "Authorization", "Bearer carol"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("while the API server is down: %d", w.Code)
	}
}
