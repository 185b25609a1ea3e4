package informers

import (
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/heddle-dev/heddle/test/simulation/apiserver"
)

func cableEvent(component, node, name, reason string, at time.Time) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node},
		Source:         corev1.EventSource{Component: component}, Reason: reason, Message: name, LastTimestamp: metav1.NewTime(at),
	}
}

// A node's history is topo-master's Events about it.
func TestHistory(t *testing.T) {
	api := apiserver.New(apiserver.Kind{APIVersion: "v1", Name: "Event", Plural: "events"})
	server := httptest.NewServer(api)
	defer server.Close()
	core, err := CoreClient(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0).UTC()
	now := clocktesting.NewFakePassiveClock(at)
	h := NewHistory(core, "heddle-topo-master", now)
	api.Put("events", cableEvent("heddle-topo-master", "n1", "found", "CableMisplaced", at))
	api.Put("events", cableEvent("kubelet", "n1", "other", "Rebooted", at))
	api.Put("events", cableEvent("heddle-topo-master", "n2", "elsewhere", "LinkDown", at))
	want := []Change{{at, "CableMisplaced", "found"}}
	if diff := cmp.Diff(want, h.Of(t.Context(), "n1")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	api.Put("events", cableEvent("heddle-topo-master", "n1", "well", "CableRecovered", at.Add(time.Minute)))
	if got := h.Of(t.Context(), "n1"); len(got) != 1 {
		t.Errorf("at once %d changes: Events are listed for each question", len(got))
	}
	now.SetTime(at.Add(2 * fresh))
	want = slices.Insert(want, 0, Change{at.Add(time.Minute), "CableRecovered", "well"})
	if diff := cmp.Diff(want, h.Of(t.Context(), "n1")); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
}
