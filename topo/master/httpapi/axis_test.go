package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// A client chooses the axis; without a choice the fabric's groups are whole, and
// each axis has a tag of its own.
func TestNodeGroupAxes(t *testing.T) {
	f := newFixture(t, fabric.ModeAuto)
	for i := range 4 {
		f.node(fmt.Sprint("tray", i), &v1alpha1.NodeTopologySpec{NVLinkDomain: "x.1", Rails: []v1alpha1.Rail{{
			ID: "0000:18:00.0", Role: "fabric", Switch: &v1alpha1.Switch{ID: []string{"aa", "bb"}[i/3]}, LinkState: v1alpha1.LinkActive,
		}}})
	}
	f.put("dragonfly-1", "n1")
	h := newServer(f).Handler()
	group := func(kind, name string, nodes ...string) string {
		for i := range nodes {
			nodes[i] = `{"name":"` + nodes[i] + `","kind":"node","status":"Ready"}`
		}
		return `{"name":"` + name + `","kind":"` + kind + `","child":[` + strings.Join(nodes, ",") + `],"status":"Ready"}`
	}
	box := `{"name":"switchbox-1","kind":"switchbox","child":[` + group("dragonfly", "dragonfly-1", "n1") + `],"status":"Ready"}`
	onFabric := "[" + group("leaf", "leaf-aa", "tray0", "tray1", "tray2") + "," + group("leaf", "leaf-bb", "tray3") + "," + box + "]\n"
	domain := group("nvlink", "nvlink-x.1", "tray0", "tray1", "tray2", "tray3")
	tags := map[string]string{}
	for query, want := range map[string]string{
		"": onFabric, "?axis=auto": onFabric, "?axis=fabric": onFabric,
		"?axis=nvlink": `[{"name":"n1","kind":"node","status":"Ready"},` + domain + "]\n",
		"?kind=nvlink": "[" + domain + "]\n", "?axis=fabric&kind=leaf&name=leaf-bb": "[" + group("leaf", "leaf-bb", "tray3") + "]\n",
	} {
		w := ask(h, "GET", "/node_group"+query)
		if got := w.Body.String(); w.Code != http.StatusOK || got != want {
			t.Errorf("%s: %d\n%s\nwant\n%s", query, w.Code, got, want)
		}
		tags[query] = w.Header().Get("ETag")
		if w := ask(h, "GET", "/node_group"+query, "If-None-Match", tags[query]); w.Code != http.StatusNotModified {
			t.Errorf("%s: asked again: %d", query, w.Code)
		}
		if packed := ask(h, "GET", "/node_group"+query, "Accept-Encoding", "gzip"); unzip(t, packed.Body) != want {
			t.Errorf("%s: another tree in gzip", query)
		}
	}
	if tags["?axis=nvlink"] == tags[""] || tags["?axis=auto"] != tags[""] {
		t.Errorf("tags %v", tags)
	}
	if got := ask(h, "GET", "/node_group", "If-None-Match", tags[""]).Header().Get(v1alpha1.CrossingHeader); got != tags["?axis=nvlink"] {
		t.Errorf("the header has %q, want %q", got, tags["?axis=nvlink"])
	}
	if w := ask(h, "GET", "/node_group?axis=x"); w.Code != http.StatusBadRequest {
		t.Errorf("another axis: %d", w.Code)
	}
	if body := ask(h, "GET", "/v1/topology").Body.String(); !strings.Contains(body,
		`"crossing":[{"name":"nvlink-x.1","kind":"nvlink","status":"Ready","key":"x.1","nodes":["tray0","tray1","tray2","tray3"]}]`) {
		t.Errorf("the domain is missing:\n%s", body)
	}
	if body := ask(h, "GET", "/v1/nodes/tray3").Body.String(); !strings.Contains(body, `"groups":[{"name":"leaf-bb","kind":"leaf","status":"Ready"},{"name":"nvlink-x.1","kind":"nvlink","status":"Ready"}]`) {
		t.Errorf("groups of a tray:\n%s", body)
	}
}
