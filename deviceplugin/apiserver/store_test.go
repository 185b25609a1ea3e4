package apiserver

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/internal/kube"
)

// store is an API server of one Node and its pods that is watched, and whose
// patches merge annotations under the preconditions of the API.
type store struct {
	t *testing.T

	mu      sync.Mutex
	version int
	node    *corev1.Node
	pods    map[string]*corev1.Pod
	// watches get every change of their kind.
	watches map[chan<- metav1.WatchEvent]string
	writes  []string
	note    chan struct{}
}

func newStore(t *testing.T) (*store, *Client) {
	t.Helper()
	s := &store{
		t: t, version: 1, pods: map[string]*corev1.Pod{}, watches: map[chan<- metav1.WatchEvent]string{}, note: make(chan struct{}),
	}
	s.node = &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	s.node.Name, s.node.UID, s.node.ResourceVersion, s.node.Annotations = node, "node-uid", "1", map[string]string{}
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	client, err := kube.ClientFor(&rest.Config{Host: ts.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	return s, New(client, node, slog.New(slog.DiscardHandler))
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	kind := "pods"
	if strings.HasPrefix(r.URL.Path, "/api/v1/nodes") {
		kind = "nodes"
	}
	switch q := r.URL.Query(); {
	case q.Get("sendInitialEvents") != "":
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case q.Get("watch") != "":
		s.watch(w, r, kind)
	case r.Method == http.MethodPatch:
		s.patch(w, r, kind)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.read(w, r, kind)
	}
}

func (s *store) watch(w http.ResponseWriter, r *http.Request, kind string) {
	events := make(chan metav1.WatchEvent, 100)
	s.mu.Lock()
	s.watches[events] = kind
	close(s.note)
	s.note = make(chan struct{})
	s.mu.Unlock()
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			s.mu.Lock()
			delete(s.watches, events)
			s.mu.Unlock()
			return
		case e := <-events:
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func (s *store) read(w http.ResponseWriter, r *http.Request, kind string) {
	list := metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}
	parts := strings.Split(r.URL.Path, "/")
	name := parts[len(parts)-1]
	var answer any
	switch {
	case name == "nodes":
		answer = corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: list, Items: []corev1.Node{*s.node}}
	case kind == "nodes":
		answer = s.node
	case name == "pods":
		all := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: list}
		for _, p := range s.pods {
			if p.Spec.NodeName == node {
				all.Items = append(all.Items, *p)
			}
		}
		answer = all
	case s.pods[name] == nil:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	default:
		answer = s.pods[name]
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *store) patch(w http.ResponseWriter, r *http.Request, kind string) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("Content-Type") != string(types.MergePatchType) {
		s.t.Errorf("patch of type %s: %v", r.Header.Get("Content-Type"), err)
	}
	var merge struct{ Metadata metadata }
	if err := json.Unmarshal(body, &merge); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		close(s.note)
		s.note = make(chan struct{})
	}()
	s.writes = append(s.writes, strings.TrimPrefix(r.URL.Path, "/api/v1/")+" "+string(body))
	parts := strings.Split(r.URL.Path, "/")
	name := parts[len(parts)-1]
	apply := func(into map[string]string) {
		for key, value := range merge.Metadata.Annotations {
			if value == nil {
				delete(into, key)
			} else {
				into[key] = *value
			}
		}
	}
	old := metav1.Object(s.node)
	if kind == "pods" {
		if s.pods[name] == nil {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		old = s.pods[name]
	}
	if v := merge.Metadata.ResourceVersion; v != "" && v != old.GetResourceVersion() ||
		merge.Metadata.UID != "" && merge.Metadata.UID != old.GetUID() {
		fail(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	if kind == "pods" {
		next := s.pods[name].DeepCopy()
		apply(next.Annotations)
		s.putPod(next)
		_ = json.NewEncoder(w).Encode(next)
		return
	}
	s.putNode(func(n *corev1.Node) { apply(n.Annotations) })
	_ = json.NewEncoder(w).Encode(s.node)
}

// putNode changes the Node; mu is held.
func (s *store) putNode(do func(*corev1.Node)) {
	next := s.node.DeepCopy()
	do(next)
	s.version++
	next.ResourceVersion = strconv.Itoa(s.version)
	s.node = next
	s.send("nodes", "MODIFIED", next)
}

// putPod replaces a pod; mu is held. One that gets its node is new to the
// watch of that node.
func (s *store) putPod(pod *corev1.Pod) {
	s.version++
	pod.ResourceVersion = strconv.Itoa(s.version)
	kind := "MODIFIED"
	if old := s.pods[pod.Name]; old == nil || old.Spec.NodeName == "" {
		kind = "ADDED"
	}
	s.pods[pod.Name] = pod
	if pod.Spec.NodeName == node {
		s.send("pods", kind, pod)
	}
}

func (s *store) send(kind, event string, object any) {
	raw, err := json.Marshal(object)
	if err != nil {
		s.t.Error(err)
	}
	for c, of := range s.watches {
		if of == kind {
			e := metav1.WatchEvent{Type: event}
			e.Object.Raw = raw
			c <- e
		}
	}
}

func (s *store) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// await waits until a write has been made that does it.
func (s *store) await(t *testing.T, done func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		ok, note := done(), s.note
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-note:
		case <-deadline:
			t.Fatalf("not within 20 s; writes: %q", s.writes)
		}
	}
}
