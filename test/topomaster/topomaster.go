// Package topomaster runs topo-master's own handler behind TLS and token
// authentication, for tests of its clients. The API server that reviews tokens is
// a double; everything else is what ships.
package topomaster

import (
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/httpserve"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/httpapi"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// The tokens that the API server knows: Reader may ask for everything, Stranger
// for nothing. Bound is Reader's, and good for topo-master alone.
const (
	Reader   = "reader"
	Stranger = "stranger"
	Bound    = "bound"
)

// ServerName is the name in the server's certificate.
const ServerName = "example.com"

// Secured is a topo-master that asks for tokens.
type Secured struct {
	URL string
	// CAFile has the authority of its certificate.
	CAFile string
	// PlainReviews counts reviews of tokens as the API server's own.
	PlainReviews atomic.Int32
}

// Start runs one with the node n1, in dragonfly-1 of switchbox-1.
func Start(tb testing.TB) *Secured {
	tb.Helper()
	s := &Secured{CAFile: filepath.Join(tb.TempDir(), "ca.crt")}
	api := httptest.NewServer(http.HandlerFunc(s.review))
	tb.Cleanup(api.Close)
	log := slog.New(slog.DiscardHandler)
	auth, err := httpserve.NewAuth(&rest.Config{Host: api.URL}, httpapi.Audience, log)
	if err != nil {
		tb.Fatal(err)
	}
	server := httptest.NewTLSServer(httpapi.New(httpapi.Options{
		Latest: one(tb), Registry: prometheus.NewRegistry(),
		Alive: func() string { return "" }, Auth: auth, Log: log,
	}).Handler())
	tb.Cleanup(server.Close)
	s.URL = server.URL
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(s.CAFile, text, 0o600); err != nil {
		tb.Fatal(err)
	}
	return s
}

// TokenFile has a token.
func TokenFile(tb testing.TB, token string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// review is the API server: a token's name is its user's.
func (s *Secured) review(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var token authnv1.TokenReview
	var access authzv1.SubjectAccessReview
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		if json.NewDecoder(r.Body).Decode(&token) != nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		bound := slices.Contains(token.Spec.Audiences, httpapi.Audience)
		if !bound {
			s.PlainReviews.Add(1)
		}
		token.Status.Authenticated = bound && token.Spec.Token == Bound ||
			!bound && (token.Spec.Token == Reader || token.Spec.Token == Stranger)
		if token.Status.Authenticated {
			token.Status.User.Username, token.Status.Audiences = token.Spec.Token, token.Spec.Audiences
		}
		_ = json.NewEncoder(w).Encode(token)
	default:
		if json.NewDecoder(r.Body).Decode(&access) != nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		access.Status.Allowed = access.Spec.User != Stranger
		_ = json.NewEncoder(w).Encode(access)
	}
}

// one is a snapshot of one node that never changes.
func one(tb testing.TB) *snapshot.Latest {
	tb.Helper()
	levels := fabric.Preset(fabric.ModeSwitchbox, 0)
	m := fabric.New(levels)
	m.Put(fabric.Node{Name: "n1", Ready: true, Report: fabric.Read(&v1alpha1.NodeTopologySpec{
		Path: []string{"switchbox-1", "dragonfly-1"}, PathSource: v1alpha1.SourceStatic,
	})})
	n1 := &informers.NodeState{Name: "n1", Node: &informers.Node{Name: "n1", UID: "u", Ready: true, GPUs: 8}}
	latest := snapshot.NewLatest()
	latest.Set(&snapshot.Snapshot{
		Generation: 1, Levels: levels, Tree: m.Snapshot(time.Unix(1, 0)),
		Nodes: snapshot.Table[*informers.NodeState]{"n1": n1},
	})
	return latest
}
