package worker

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/kube"
)

// Server is an API server with one Node and its NodeTopology. It has no socket,
// so that a test's clock runs on while a worker waits for it.
type Server struct {
	mu             sync.Mutex
	object         *v1alpha1.NodeTopology
	uid            types.UID // The Node's.
	down           error
	applies, beats int
	labels         map[string]string // The Node's.
	created        metav1.Time       // That of objects it makes.
}

// Publisher is one that writes to the server.
func (s *Server) Publisher(tb testing.TB, node string) *Publisher {
	tb.Helper()
	client, err := kube.ClientFor(&rest.Config{Host: "http://server", Transport: s}, "test")
	if err != nil {
		tb.Fatal(err)
	}
	return NewPublisher(client, node)
}

// Spec is what stands there, Writes how often it was written.
func (s *Server) Spec() *v1alpha1.NodeTopologySpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &s.object.Spec
}

// Writes counts all writes.
func (s *Server) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applies + s.beats
}

// RoundTrip implements [http.RoundTripper].
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return nil, s.down
	}
	var sent v1alpha1.NodeTopology
	if r.Body != nil {
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			return nil, err
		}
	}
	code := http.StatusOK
	answer := func() any { return s.object }
	switch isStatus := strings.HasSuffix(r.URL.Path, "/status"); {
	case strings.HasPrefix(r.URL.Path, "/api/v1/nodes/"):
		answer = func() any {
			return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: s.uid, Labels: s.labels}}
		}
	case r.Method == http.MethodPatch && !isStatus:
		s.applies++
		if s.object == nil {
			s.object = &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: s.created}}
		}
		s.object.OwnerReferences, s.object.Spec = sent.OwnerReferences, sent.Spec
		s.object.Spec.PathSource = "" // As an older schema would drop what it does not know.
	case s.object == nil:
		code = http.StatusNotFound
	case isStatus:
		s.beats++
		s.object.Status.HeartbeatTime = sent.Status.HeartbeatTime
	}
	text, err := json.Marshal(answer())
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(bytes.NewReader(text)),
	}, err
}
