package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// A client asks for the cables of one group or of one switch.
func TestPortsOfASwitch(t *testing.T) {
	f := newFixture(t, fabric.ModeAuto)
	f.node("n1", &v1alpha1.NodeTopologySpec{Rails: []v1alpha1.Rail{{
		ID: "0000:18:00.0", HCA: "mlx5_0", Role: "fabric", Port: 1, Switch: &v1alpha1.Switch{ID: "aa", Name: "leaf-x"}, SwitchPort: "64",
		LinkState: v1alpha1.LinkActive,
	}}})
	f.put("dragonfly-1", "n2")
	h := newServer(f).Handler()
	for query, want := range map[string]int{
		"?switch=leaf-x&port=64": http.StatusOK, "?switch=nowhere": http.StatusOK, "?group=leaf-leaf-x": http.StatusNotFound,
		"": http.StatusBadRequest, "?group=a&switch=b": http.StatusBadRequest,
	} {
		if w := ask(h, "GET", "/v1/ports"+query); w.Code != want {
			t.Errorf("%s: %d, want %d", query, w.Code, want)
		}
	}
	body := ask(h, "GET", "/v1/ports?switch=leaf-x&port=64").Body.String()
	if want := `"node":"n1","status":"Ready","group":"leaf-x","rail":0,"hca":"mlx5_0"`; !strings.Contains(body, want) {
		t.Errorf("who is on the port: %s", body)
	}
}
