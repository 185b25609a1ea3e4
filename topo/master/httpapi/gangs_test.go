package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// gang puts a gang of pods on nodes and publishes; "" is no node.
func (f *fixture) gang(namespace, name string, on ...string) {
	var members []*gang.Member
	for i, node := range on {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprint(name, "-", i), Labels: map[string]string{wellknown.GangName: name, wellknown.GangMinAvailable: "2"},
		}}
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		m, _ := gang.MemberOf(p, 8)
		members = append(members, m)
	}
	key := namespace + "/" + name
	f.now.Gangs = f.now.Gangs.With(map[string]*informers.Gang{key: {Name: key, Members: members}})
	f.put("dragonfly-1")
}

func TestGangs(t *testing.T) {
	f := newFixture(t, fabric.ModeSwitchbox)
	h := newServer(f).Handler()
	f.put("dragonfly-1", "n1", "n2")
	f.gang("b", "z", "n2", "n1")
	f.gang("a", "x", "", "")
	const (
		x = `{"namespace":"a","name":"x","api":"PodGroup","state":"Queued","reason":"0 of 2 have a node","minMember":2,"members":2,"bound":0,"running":0,"gpus":16,"nodes":[]}`
		z = `{"namespace":"b","name":"z","api":"PodGroup","state":"Running","minMember":2,"members":2,"bound":2,"running":2,"gpus":16,"group":{"name":"dragonfly-1","kind":"dragonfly"},"nodes":["n2","n1"]}`
	)
	for _, tt := range []struct{ query, want string }{
		{"", `{"gangs":[` + x + `,` + z + `]}`},
		{"?namespace=a", `{"gangs":[` + x + `]}`},
		{"?state=Running", `{"gangs":[` + z + `]}`},
		{"?state=Running&namespace=a", `{"gangs":[]}`},
	} {
		w := ask(h, "GET", "/v1/gangs"+tt.query)
		if diff := cmp.Diff(tt.want+"\n", w.Body.String()); diff != "" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.query, w.Header(), diff)
		}
		tag := w.Header().Get("ETag")
		if w := ask(h, "GET", "/v1/gangs"+tt.query, "If-None-Match", tag); w.Code != http.StatusNotModified || tag == "" {
			t.Errorf("%s asked again: %d", tt.query, w.Code)
		}
		packed := ask(h, "GET", "/v1/gangs"+tt.query, "Accept-Encoding", "gzip")
		if got := unzip(t, packed.Body); got != tt.want+"\n" {
			t.Errorf("%s compressed: %s", tt.query, got)
		}
	}
	before := ask(h, "GET", "/v1/gangs")
	if w := ask(h, "GET", "/v1/gangs?state=running"); w.Code != http.StatusBadRequest {
		t.Errorf("an unknown state: %d", w.Code)
	}
	// The tag depends on the content alone.
	f.put("dragonfly-2", "n3")
	if w := ask(h, "GET", "/v1/gangs"); w.Header().Get("ETag") != before.Header().Get("ETag") {
		t.Error("another node, and another tag")
	}
	f.gang("a", "x", "n1", "n3")
	var got snapshot.Gangs
	w := ask(h, "GET", "/v1/gangs?namespace=a")
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Header().Get("ETag") == before.Header().Get("ETag") {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&snapshot.GroupName{Name: "switchbox-1", Kind: "switchbox"}, got.Gangs[0].Group); diff != "" {
		t.Errorf("the group of two dragonflies (-want +got):\n%s", diff)
	}
}
