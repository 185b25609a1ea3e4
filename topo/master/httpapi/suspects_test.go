package httpapi

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/suspect"
)

func TestSuspects(t *testing.T) {
	memory, now := suspect.NewMemory(), time.Now()
	for i, gang := range []string{"a/x", "a/y"} {
		memory.See(suspect.Pod{
			UID: types.UID(gang), Gang: gang, Node: "n1", Failure: "exit code 1",
			Start: now.Add(-time.Duration(20+i) * time.Minute), End: now.Add(-time.Duration(10+i) * time.Minute),
		})
	}
	f := newFixture(t, fabric.ModeSwitchbox)
	h := newServer(f, func(o *Options) { o.Suspects = memory }).Handler()
	f.put("dragonfly-1", "n1")
	for path, want := range map[string]string{
		"/v1/suspects":          `{"suspects":[{"kind":"node","name":"n1","state":"Doubt"`,
		"/v1/suspects?gang=a/x": `"avoids":["n1"]`,
		"/v1/nodes/n1":          `"suspect":{"kind":"node"`,
	} {
		if w := ask(h, "GET", path); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", path, w.Code, w.Body, want)
		}
	}
}
