package informers

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/test/simulation/apiserver"
)

func cableEvent(component, node, name, reason string, at time.Time) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node},
		Source:         corev1.EventSource{Component: component}, Reason: reason, Message: name, LastTimestamp: metav1.NewTime(at),
	}
}

// A node's history is topo-master's Events about it, also those that the API server
// has deleted since.
func TestHistory(t *testing.T) {
	api := apiserver.New(apiserver.Kind{APIVersion: "v1", Name: "Event", Plural: "events"})
	server := httptest.NewServer(api)
	defer server.Close()
	defer server.CloseClientConnections()
	core, err := CoreClient(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0).UTC()
	api.Put("events", cableEvent("heddle-topo-master", "n1", "found", "CableMisplaced", at))
	api.Put("events", cableEvent("kubelet", "n1", "other", "Rebooted", at))
	h := NewHistory(core, "heddle-topo-master")
	done := make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	go func() { done <- h.Run(ctx) }()
	defer func() { // Before the server, which waits for a watch that came back.
		stop()
		<-done
	}()
	has := func(n int) []Change {
		t.Helper()
		for range 500 {
			if got := h.Of("n1"); len(got) == n {
				return got
			}
			<-time.After(10 * time.Millisecond)
		}
		t.Fatalf("the history has %d changes, want %d", len(h.Of("n1")), n)
		return nil
	}
	has(1)
	api.Put("events", cableEvent("heddle-topo-master", "n2", "elsewhere", "LinkDown", at))
	api.Put("events", cableEvent("heddle-topo-master", "n1", "well", "CableRecovered", at.Add(time.Minute)))
	has(2)
	api.Remove("events", metav1.NamespaceDefault, "found")
	api.Put("events", cableEvent("heddle-topo-master", "n1", "dead", "LinkDown", at.Add(2*time.Minute)))
	var got []string
	for _, c := range has(3) {
		got = append(got, c.Reason)
	}
	if diff := cmp.Diff([]string{"LinkDown", "CableRecovered", "CableMisplaced"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// However many Events there are, the memory is bounded, and the oldest go.
func TestHistoryIsBounded(t *testing.T) {
	h := &History{}
	for i := range maxHistory + 10 {
		at := time.Unix(int64(i), 0)
		h.add(changeOf(cableEvent("heddle-topo-master", "n1", fmt.Sprint(i), "LinkDown", at)))
		h.add(changeOf(cableEvent("heddle-topo-master", "n1", fmt.Sprint(i), "LinkDown", at)))
	}
	if got := h.Of("n1"); len(got) != maxHistory || got[0].Message != fmt.Sprint(maxHistory+9) || len((*History)(nil).Of("n1")) != 0 {
		t.Errorf("%d changes, the newest %q", len(got), got[0].Message)
	}
}
