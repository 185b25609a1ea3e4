package topologyclient_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/test/topomaster"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// run polls until the test ends.
func run(t *testing.T, o topologyclient.Options) *topologyclient.Client {
	t.Helper()
	o.Interval, o.Log = time.Millisecond, slog.New(slog.DiscardHandler)
	f := topologyclient.New(o)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return f
}

// eventually looks every millisecond.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late, tick := time.After(20*time.Second), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-late:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

func failure(f *topologyclient.Client) string {
	if _, err := f.Current(); err != nil {
		return err.Error()
	}
	return ""
}

func TestTLSAndToken(t *testing.T) {
	s := topomaster.Start(t)
	foreign := topomaster.Start(t).CAFile // httptest's certificate is one for all.
	other := filepath.Join(t.TempDir(), "other.crt")
	if err := os.WriteFile(other, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, ca, token, want string }{
		{"a token for topo-master", s.CAFile, topomaster.TokenFile(t, topomaster.Bound), ""},
		{"a token for the API server", foreign, topomaster.TokenFile(t, topomaster.Reader), ""},
		{"no token", s.CAFile, "", "status 401 Unauthorized"},
		{"a token without permission", s.CAFile, topomaster.TokenFile(t, topomaster.Stranger), "status 403 Forbidden"},
		{"an invalid token", s.CAFile, topomaster.TokenFile(t, "forged"), "status 401 Unauthorized"},
		{"an empty token", s.CAFile, topomaster.TokenFile(t, ""), "read token and authorities"},
		{"no token file", s.CAFile, "/nowhere/token", "open /nowhere/token"},
		{"no authority", "", topomaster.TokenFile(t, topomaster.Bound), "certificate signed by unknown authority"},
		{"no certificate", other, topomaster.TokenFile(t, topomaster.Bound), "read token and authorities"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := run(t, topologyclient.Options{URL: s.URL + "/node_group", CAFile: tt.ca, TokenFile: tt.token})
			if tt.want != "" {
				eventually(t, tt.want, func() bool { return strings.Contains(failure(f), tt.want) })
				return
			}
			eventually(t, "a tree", func() bool {
				m, _ := f.Current()
				return len(m.Groups) == 1 && m.Groups[0].Name == "switchbox-1"
			})
		})
	}
}

// Tokens are renewed every hour, authorities now and then.
func TestFilesAreReloaded(t *testing.T) {
	s := topomaster.Start(t)
	token := topomaster.TokenFile(t, "forged")
	text, err := os.ReadFile(s.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(ca, "not yet")
	f := run(t, topologyclient.Options{URL: s.URL + "/node_group", CAFile: ca, TokenFile: token})
	eventually(t, "no authority", func() bool { return strings.Contains(failure(f), "read token and authorities") })
	write(ca, string(text))
	eventually(t, "a forged token", func() bool { return strings.Contains(failure(f), "401") })
	write(token, topomaster.Bound)
	eventually(t, "a tree", func() bool { m, err := f.Current(); return len(m.Groups) == 1 && err == nil })
}
