package supportbundle

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
)

func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	w := files{content: map[string][]byte{}}
	long := strings.Repeat("x\n", maxFile)
	w.add(source.BundleMachine, []byte(`{"node": "a"}`))
	w.add("logs/x.log", []byte(long+"the end\n"))
	for i := range 40 {
		w.add(fmt.Sprint("logs/more.log", i), []byte(long[:maxFile]))
	}
	if err := w.write(&b, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := source.ReadBundle(path)
	if err != nil {
		t.Fatal(err)
	}
	log := string(files["logs/x.log"])
	if string(files[source.BundleMachine]) != `{"node": "a"}` || len(log) != maxFile || !strings.HasSuffix(log, "the end\n") {
		t.Errorf("machine %q, log of %d bytes", files[source.BundleMachine], len(log))
	}
	left := strings.Join(w.left, "\n")
	if !strings.Contains(left, "logs/x.log: the first 1048584 bytes") || !strings.Contains(left, "logs/more.log39: the bundle is full") {
		t.Errorf("left out: %s", left)
	}
	if err := os.WriteFile(path, []byte("not a bundle"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := source.ReadBundle(path); err == nil || !strings.Contains(err.Error(), path) {
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
		if diff := cmp.Diff(want, string(redact([]byte(text)))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}
