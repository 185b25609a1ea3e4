package supportbundle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBounds(t *testing.T) {
	w := files{content: map[string][]byte{}}
	long := strings.Repeat("x\n", maxFile)
	w.add(machineFile, []byte(long))
	w.add("logs/x.log", []byte(long+"the end\n"))
	for i := range 40 {
		w.add(fmt.Sprint("logs/more.log", i), []byte(long[:maxFile]))
	}
	log := string(w.content["logs/x.log"])
	if len(w.content[machineFile]) != len(long) || len(log) != maxFile || !strings.HasSuffix(log, "the end\n") {
		t.Errorf("machine of %d bytes, log of %d", len(w.content[machineFile]), len(log))
	}
	left := strings.Join(w.left, "\n")
	if !strings.Contains(left, "logs/x.log: the first 1048584 bytes") || !strings.Contains(left, "logs/more.log39: the bundle is full") {
		t.Errorf("left out: %s", left)
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
