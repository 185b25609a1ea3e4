package bundle_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/bundle"
)

func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	w := bundle.NewWriter(&b, time.Unix(0, 0))
	long := strings.Repeat("x\n", bundle.MaxFile)
	for name, text := range map[string]string{bundle.Machine: `{"node": "a"}`, "logs/x.log": long + "the end\n"} {
		if err := w.Add(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for range 40 {
		if err := w.Add("logs/more.log", []byte(long[:bundle.MaxFile])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := bundle.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	log := string(files["logs/x.log"])
	if string(files[bundle.Machine]) != `{"node": "a"}` || len(log) != bundle.MaxFile || !strings.HasSuffix(log, "the end\n") {
		t.Errorf("machine %q, log of %d bytes", files[bundle.Machine], len(log))
	}
	left := strings.Join(w.Left, "\n")
	if !strings.Contains(left, "logs/x.log: the first 1048584 bytes") || !strings.Contains(left, "logs/more.log: the bundle is full") {
		t.Errorf("left out: %s", left)
	}
	if err := os.WriteFile(path, []byte("not a bundle"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bundle.Read(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("what is no bundle: %v", err)
	}
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"address: https://user:pass@manager.example.com/groups":         "address: https://REDACTED@manager.example.com/groups",
		"Authorization: Bearer abc.def":                                 "Authorization: REDACTED REDACTED",
		`{"password":"a b","x":1}`:                                      `{"password":REDACTED,"x":1}`,
		"token=abc next":                                                "token=REDACTED next",
		"got eyJhbGciOiJSUzI1NiJ9.e30.c2ln here":                        "got REDACTED here",
		"-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n": "REDACTED\n",
		"gpu 0000:18:00.0, mode: sgpu":                                  "gpu 0000:18:00.0, mode: sgpu",
	} {
		if diff := cmp.Diff(want, string(bundle.Redact([]byte(text)))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}
