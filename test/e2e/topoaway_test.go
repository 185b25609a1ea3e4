//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAPIServerRestart takes the API server away from two replicas of
// topo-master: both go on answering what they knew, and report how old it is. When
// it is back they receive what happened meanwhile, and agree again.
func TestAPIServerRestart(t *testing.T) {
	b := shared
	b.topologyCRD(t)
	const leafA, leafB = "b83fd20000001a01", "b83fd20000001b01"
	for node, leaf := range map[string]string{"away-a1": leafA, "away-a2": leafA, "away-b1": leafB} {
		b.newNode(t, node, nil)
		b.report(t, reportOf(node, b.node(t, node).UID, leaf))
	}
	one, two := b.startTopoMaster(t, "one", 19411), b.startTopoMaster(t, "two", 19412)
	const tree = "/node_group?kind=leaf"
	agreed := func(want string) func() string {
		return func() string {
			_, tagOne, bodyOne := one.get(t, tree)
			_, tagTwo, bodyTwo := two.get(t, tree)
			if tagOne != tagTwo {
				return "tags " + tagOne + " and " + tagTwo
			}
			return cmp.Diff(want, bodyOne) + cmp.Diff(bodyOne, bodyTwo)
		}
	}
	group := func(leaf string, nodes ...string) string {
		text := `{"name":"leaf-` + leaf + `","kind":"leaf","child":[`
		for i, node := range nodes {
			if i > 0 {
				text += ","
			}
			text += `{"name":"` + node + `","kind":"node","status":"NotReady"}`
		}
		return text + `],"status":"NotReady"}`
	}
	before := "[" + group(leafA, "away-a1", "away-a2") + "," + group(leafB, "away-b1") + "]\n"
	eventually(t, 30*time.Second, agreed(before))

	if err := b.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := false
	t.Cleanup(func() {
		if !back {
			if err := b.StartAPIServer(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	for _, m := range []*topoMaster{one, two} {
		eventually(t, 30*time.Second, func() string {
			if age := m.age(t); age < 3 {
				return fmt.Sprintf("the map is reported to be %d s old", age)
			}
			return ""
		})
		if code, _, body := m.get(t, "/healthz"); code != http.StatusOK {
			t.Errorf("without an API server it is not alive: %d %s", code, body)
		}
	}
	if why := agreed(before)(); why != "" {
		t.Errorf("without an API server: %s", why)
	}

	back = true
	if err := b.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.report(t, reportOf("away-a2", b.node(t, "away-a2").UID, leafB))
	eventually(t, time.Minute, agreed("["+group(leafA, "away-a1")+","+group(leafB, "away-a2", "away-b1")+"]\n"))
	eventually(t, time.Minute, func() string {
		if got := b.node(t, "away-a2").Labels["heddle.dev/topology.leaf"]; got != "leaf-"+leafB {
			return "the leader writes leaf " + got
		}
		return ""
	})
	for _, m := range []*topoMaster{one, two} {
		if age := m.age(t); age > 90 {
			t.Errorf("the API server is back and the map %d s old", age)
		}
	}
}

// age is the time since the API server's last answer, in seconds, as topo-master
// reports it.
func (m *topoMaster) age(t *testing.T) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.url+"/node_group", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	age, err := strconv.Atoi(resp.Header.Get("Heddle-Contact-Age"))
	if err != nil {
		t.Fatalf("the answer's age: %v", err)
	}
	return age
}
