package httpapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/topo/fabric"
)

// keyPair writes a certificate for a name.
func keyPair(t *testing.T, dir, name string, at time.Time) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	start := time.Now().Add(-time.Hour)
	certFile, keyFile := keyPair(t, dir, "first", start)
	c, err := NewCertificate(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) })
	defer running.Wait()
	defer cancel()
	name := func() string {
		t.Helper()
		pair, err := c.Config().GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.Subject.CommonName
	}
	if got := name(); got != "first" {
		t.Errorf("%s at the start", got)
	}
	keyPair(t, dir, "second", start.Add(time.Minute))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); name() != "second"; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("not read after the files changed")
		}
	}
	if err := os.WriteFile(certFile, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.files.RunOnce(ctx); err == nil || name() != "second" {
		t.Errorf("%s after the file was broken, %v", name(), err)
	}
	if _, err := NewCertificate(certFile, keyFile); err == nil {
		t.Error("a broken file at the start is no error")
	}
}

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
		if o.Auth, err = NewTokenAuth(&rest.Config{Host: api.URL, QPS: -1}, o.Log); err != nil {
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
