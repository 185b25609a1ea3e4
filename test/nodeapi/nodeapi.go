// Package nodeapi is the API server of one Node and its pods, for tests of what
// runs on that node. It lists, watches, reads, merges annotations under the
// preconditions of the API, sets conditions, and takes Events and evictions. It
// knows no roles and validates nothing: the real one is in test/e2e.
package nodeapi

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/internal/kube"
)

// Server is the API server. Its methods take Mu, which guards the fields.
type Server struct {
	Mu sync.Mutex
	// Node and Pods are replaced and never modified. Absent: the Node is not
	// there. Unlisted: pods cannot be listed.
	Node             *corev1.Node
	Pods             []*corev1.Pod
	Absent, Unlisted bool
	// Withdrawn is the ConfigMap of withdrawn nodes; nil if it does not exist. A table of Nodes has this number of rows,
	// and its label must be TableOf.
	Withdrawn *corev1.ConfigMap
	Nodes     int
	TableOf   string
	// Classes is the answer for DeviceClasses; there is no such API while it is
	// empty.
	Classes string
	// Hang makes every request wait for its context, Reject makes writes fail.
	Hang, Reject bool
	// OnWrite receives every write that succeeded, with Mu held.
	OnWrite func(path string, body []byte)
	// Writes are paths and bodies of patches, Reads what was asked for: "list",
	// "get NAME", "classes".
	Writes, Reads []string
	Events        []corev1.Event
	// Evicted are names and UIDs.
	Evicted []string

	tb      testing.TB
	url     string
	version int
	watches map[chan<- metav1.WatchEvent]string // kind of each
	// note is closed after every write, and when a watch began.
	note chan struct{}
}

// New starts a server that ends with the test.
func New(tb testing.TB, node string) *Server {
	tb.Helper()
	s := &Server{tb: tb, version: 1, watches: map[chan<- metav1.WatchEvent]string{}, note: make(chan struct{})}
	s.Node = &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	s.Node.Name, s.Node.UID, s.Node.ResourceVersion = node, "node-uid", "1"
	server := httptest.NewServer(s)
	s.url = server.URL
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return s
}

// Client is a client of the server.
func (s *Server) Client() rest.Interface {
	s.tb.Helper()
	client, err := kube.ClientFor(&rest.Config{Host: s.url, QPS: -1}, "test")
	if err != nil {
		s.tb.Fatal(err)
	}
	return client
}

// ServeHTTP answers as an API server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	kind := "pods"
	if strings.HasPrefix(r.URL.Path, "/api/v1/nodes") {
		kind = "nodes"
	}
	s.Mu.Lock()
	hang := s.Hang
	s.Mu.Unlock()
	q := r.URL.Query()
	switch {
	case hang:
		<-r.Context().Done()
	case q.Get("sendInitialEvents") != "":
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case q.Get("watch") != "":
		s.watch(w, r, kind)
	case r.Method == http.MethodGet:
		s.Mu.Lock()
		defer s.Mu.Unlock()
		s.read(w, r)
	default:
		s.Mu.Lock()
		defer s.Mu.Unlock()
		s.write(w, r, body)
		s.noted()
	}
}

func (s *Server) noted() {
	close(s.note)
	s.note = make(chan struct{})
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason,
		Code: int32(code),
	})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, kind string) {
	events := make(chan metav1.WatchEvent, 1000)
	s.Mu.Lock()
	// What changed between the list and the watch.
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if v, _ := strconv.Atoi(s.Node.ResourceVersion); kind == "nodes" && !s.Absent && v > from {
		events <- event("MODIFIED", s.Node)
	}
	for _, p := range s.Pods {
		if v, _ := strconv.Atoi(p.ResourceVersion); kind == "pods" && s.bound(p) && v > from {
			events <- event("MODIFIED", p)
		}
	}
	s.watches[events] = kind
	s.noted()
	s.Mu.Unlock()
	defer func() {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		delete(s.watches, events)
	}()
	flush := http.NewResponseController(w).Flush
	_ = flush() // The writer of a test server can.
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return
			}
			_ = flush()
		}
	}
}

func (s *Server) bound(p *corev1.Pod) bool { return p.Spec.NodeName == s.Node.Name }

func event(what string, object any) metav1.WatchEvent {
	raw, _ := json.Marshal(object)
	e := metav1.WatchEvent{Type: what}
	e.Object.Raw = raw
	return e
}

func (s *Server) read(w http.ResponseWriter, r *http.Request) {
	list := metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}
	at := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool {
		return strings.HasSuffix(r.URL.Path, "/"+p.Namespace+"/pods/"+p.Name)
	})
	var answer any
	switch {
	case r.URL.Path == "/api/v1/nodes" && strings.Contains(r.Header.Get("Accept"), "as=Table"):
		if got := r.URL.Query().Get("labelSelector"); got != s.TableOf {
			s.tb.Errorf("counted nodes by %q", got)
		}
		answer = metav1.Table{Rows: make([]metav1.TableRow, s.Nodes)}
	case strings.Contains(r.URL.Path, "/configmaps/") && s.Withdrawn != nil:
		s.Reads = append(s.Reads, "withdrawn")
		answer = s.Withdrawn
	case r.URL.Path == "/api/v1/nodes":
		all := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: list}
		if !s.Absent {
			all.Items = []corev1.Node{*s.Node}
		}
		answer = all
	case r.URL.Path == "/api/v1/nodes/"+s.Node.Name && !s.Absent:
		answer = s.Node
	case r.URL.Path == "/api/v1/pods" && !s.Unlisted:
		if got := r.URL.Query().Get("fieldSelector"); got != "spec.nodeName="+s.Node.Name {
			s.tb.Errorf("listed pods by %q", got)
		}
		s.Reads = append(s.Reads, "list")
		all := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: list}
		for _, p := range s.Pods {
			if s.bound(p) {
				all.Items = append(all.Items, *p)
			}
		}
		answer = all
	case strings.HasSuffix(r.URL.Path, "/deviceclasses") && s.Classes != "":
		s.Reads = append(s.Reads, "classes")
		_, _ = io.WriteString(w, s.Classes)
		return
	case at >= 0:
		s.Reads = append(s.Reads, "get "+s.Pods[at].Name)
		answer = s.Pods[at]
	default:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// write takes Events, evictions, and patches of annotations and conditions.
func (s *Server) write(w http.ResponseWriter, r *http.Request, body []byte) {
	path, evicts := strings.CutSuffix(r.URL.Path, "/eviction")
	events := strings.Contains(path, "/events")
	if s.Reject && !events {
		fail(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	}
	var answer any
	var reason metav1.StatusReason
	switch {
	case events:
		e := corev1.Event{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}}
		s.decode(body, &e)
		if r.Method == http.MethodPost { // Else it is a new count of a known one.
			s.Events = append(s.Events, e)
		}
		answer = e
	case evicts:
		var eviction policyv1.Eviction
		s.decode(body, &eviction)
		name := path[strings.LastIndex(path, "/")+1:]
		s.Evicted = append(s.Evicted, name+" "+string(*eviction.DeleteOptions.Preconditions.UID))
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
	case strings.Contains(path, "/configmaps/"):
		s.Writes = append(s.Writes, strings.TrimPrefix(path, "/api/v1/")+" "+string(body))
		answer, reason = s.enter(body)
	case strings.HasSuffix(path, "/status"):
		s.Writes = append(s.Writes, strings.TrimPrefix(path, "/api/v1/")+" "+string(body))
		answer, reason = s.setConditions(strings.TrimSuffix(path, "/status"), body)
	default:
		s.Writes = append(s.Writes, strings.TrimPrefix(path, "/api/v1/")+" "+string(body))
		if got := r.Header.Get("Content-Type"); got != string(types.MergePatchType) {
			s.tb.Errorf("patch of type %s", got)
		}
		answer, reason = s.annotate(path, body)
	}
	switch reason { //nolint:exhaustive // The others are written.
	case metav1.StatusReasonConflict:
		fail(w, http.StatusConflict, reason)
		return
	case metav1.StatusReasonNotFound:
		fail(w, http.StatusNotFound, reason)
		return
	}
	if s.OnWrite != nil {
		s.OnWrite(r.URL.Path, body)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *Server) decode(body []byte, into any) {
	if err := json.Unmarshal(body, into); err != nil {
		s.tb.Errorf("%s: %v", body, err)
	}
}

// enter merges entries into the ConfigMap of withdrawn nodes.
func (s *Server) enter(body []byte) (answer any, reason metav1.StatusReason) {
	var patch corev1.ConfigMap
	if s.decode(body, &patch); s.Withdrawn == nil || patch.ResourceVersion != s.Withdrawn.ResourceVersion {
		return nil, metav1.StatusReasonConflict
	}
	next := s.Withdrawn.DeepCopy()
	if next.Data == nil {
		next.Data = map[string]string{}
	}
	maps.Copy(next.Data, patch.Data)
	s.version++
	next.ResourceVersion = strconv.Itoa(s.version)
	s.Withdrawn = next
	return next, ""
}

// setConditions merges conditions, and annotations beside them.
func (s *Server) setConditions(path string, body []byte) (answer any, reason metav1.StatusReason) {
	if s.Absent {
		return nil, metav1.StatusReasonNotFound
	}
	var patch corev1.Node
	s.decode(body, &patch)
	if patch.Annotations != nil {
		s.annotate(path, body)
	}
	s.editNode(func(n *corev1.Node) {
		for _, c := range patch.Status.Conditions {
			same := func(old corev1.NodeCondition) bool { return old.Type == c.Type }
			n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions, same), c)
		}
	})
	return s.Node, ""
}

func (s *Server) annotate(path string, body []byte) (answer any, reason metav1.StatusReason) {
	var patch struct {
		Metadata struct {
			ResourceVersion string             `json:"resourceVersion"`
			UID             types.UID          `json:"uid"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Taints *[]corev1.Taint `json:"taints"`
		} `json:"spec"`
	}
	s.decode(body, &patch)
	name := path[strings.LastIndex(path, "/")+1:]
	old := metav1.Object(s.Node)
	if !strings.HasPrefix(path, "/api/v1/nodes/") {
		at := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool { return p.Name == name })
		if at < 0 {
			return nil, metav1.StatusReasonNotFound
		}
		old = s.Pods[at]
	} else if s.Absent {
		return nil, metav1.StatusReasonNotFound
	}
	version, uid := patch.Metadata.ResourceVersion, patch.Metadata.UID
	if version != "" && version != old.GetResourceVersion() || uid != "" && uid != old.GetUID() {
		return nil, metav1.StatusReasonConflict
	}
	merge := func(into map[string]string) {
		for key, value := range patch.Metadata.Annotations {
			if value == nil {
				delete(into, key)
			} else {
				into[key] = *value
			}
		}
	}
	if old == metav1.Object(s.Node) {
		s.editNode(func(n *corev1.Node) {
			merge(n.Annotations)
			if patch.Spec.Taints != nil {
				n.Spec.Taints = *patch.Spec.Taints
			}
		})
		return s.Node, ""
	}
	return s.editPod(name, func(p *corev1.Pod) { merge(p.Annotations) }), ""
}
