package clitest

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Forward returns a handler that serves port-forward as an API server does, to a pod with this
// handler at one port of its loopback. Like a proxy without WebSockets it supports only SPDY.
func Forward(port string, pod http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "no WebSocket", http.StatusBadRequest)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return // It has answered.
		}
		streams := make(chan httpstream.Stream, 2)
		accept := func(s httpstream.Stream, _ <-chan struct{}) error {
			streams <- s
			return nil
		}
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, accept)
		if conn == nil {
			return
		}
		defer func() { _ = conn.Close() }()
		byType := map[string]httpstream.Stream{}
		for len(byType) < 2 {
			select {
			case s := <-streams:
				byType[s.Headers().Get(corev1.StreamType)] = s
			case <-conn.CloseChan():
				return
			}
		}
		serveStream(byType[corev1.StreamTypeData], byType[corev1.StreamTypeError], port, pod)
		<-conn.CloseChan()
	}
}

// serveStream answers one request.
func serveStream(data, faults httpstream.Stream, port string, pod http.Handler) {
	defer func() { _, _ = faults.Close(), data.Close() }()
	if got := data.Headers().Get(corev1.PortHeader); got != port {
		_, _ = fmt.Fprintf(faults, "connect to localhost:%s: connection refused\n", got)
		return
	}
	request, err := http.ReadRequest(bufio.NewReader(data))
	if err != nil {
		_, _ = fmt.Fprintln(faults, err)
		return
	}
	request.RemoteAddr = "127.0.0.1:40000"
	w := httptest.NewRecorder()
	pod.ServeHTTP(w, request)
	_ = w.Result().Write(data)
}
