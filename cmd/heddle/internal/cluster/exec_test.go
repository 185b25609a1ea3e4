package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/heddle-dev/heddle/internal/kube"
)

// execServer is an API server without WebSockets whose pods print the command. The command false fails, and hang stays.
func execServer(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "no WebSocket", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return // It has answered.
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	defer func() { _ = conn.Close() }()
	byType := map[string]httpstream.Stream{}
	for len(byType) < 2 {
		s := <-streams
		byType[s.Headers().Get(corev1.StreamType)] = s
	}
	command := r.URL.Query()["command"]
	fmt.Fprint(byType[corev1.StreamTypeStdout], r.URL.Path, " ", strings.Join(command, ","))
	status := `{"status":"Success"}`
	switch command[0] {
	case "hang":
		<-conn.CloseChan()
		return
	case "false":
		status = `{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}`
	}
	fmt.Fprint(byType[corev1.StreamTypeError], status)
	_, _ = byType[corev1.StreamTypeStdout].Close(), byType[corev1.StreamTypeError].Close()
	<-conn.CloseChan()
}

func TestExec(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(execServer))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	client, err := kube.ClientFor(config, "test")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	for command, want := range map[string]string{"echo a": "", "false": "command terminated with exit code 3", "hang": "context canceled"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out bytes.Buffer
		begun := writer(func(b []byte) (int, error) {
			if command == "hang" {
				cancel()
			}
			return out.Write(b)
		})
		err := (&Client{client, config}).Exec(ctx, pod, strings.Fields(command), begun)
		if text := "/api/v1/namespaces/ns/pods/p/exec " + strings.ReplaceAll(command, " ", ","); out.String() != text {
			t.Errorf("%s printed %q, want %q", command, out.String(), text)
		}
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
