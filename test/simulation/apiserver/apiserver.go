// Package apiserver is an API server in memory, for `make fleet`, for tests of what talks to one and cannot
// wait for a real one, and for fleets that would take a real one minutes to fill.
//
// It lists, watches (with initial events), creates, updates, deletes, patches and applies. It validates nothing
// and knows no roles: what depends on that is tested on the real one.
package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Server is the API server. Its methods are safe for concurrent use.
type Server struct {
	mu       sync.Mutex // Guards what follows.
	version  int64
	kinds    map[string]*kind // By plural.
	requests map[string]int
}

// kind has the objects of one kind as JSON: decoded, a fleet would take a gigabyte.
type kind struct {
	Kind
	down     bool
	objects  map[string][]byte // By namespace/name.
	watchers map[*watcher]bool
}

// Kind is a kind of objects that the server has.
type Kind struct {
	// APIVersion and Name as in an object; Plural as in a path.
	APIVersion, Name, Plural string
}

func (k *Kind) gvk() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(k.APIVersion, k.Name)
}

// New makes a server with Nodes, pods, Leases, NodeTopologies and more kinds.
func New(more ...Kind) *Server {
	s := &Server{kinds: map[string]*kind{}, requests: map[string]int{}, version: 100}
	for _, k := range append([]Kind{
		{APIVersion: "v1", Name: "Node", Plural: "nodes"},
		{APIVersion: "v1", Name: "Pod", Plural: "pods"},
		{APIVersion: "v1", Name: "Service", Plural: "services"},
		{APIVersion: "coordination.k8s.io/v1", Name: "Lease", Plural: "leases"},
		{APIVersion: "topology.heddle.dev/v1alpha1", Name: "NodeTopology", Plural: "nodetopologies"},
	}, more...) {
		s.kinds[k.Plural] = &kind{Kind: k, objects: map[string][]byte{}, watchers: map[*watcher]bool{}}
	}
	return s
}

// Put adds or replaces an object of any type that encodes as one.
func (s *Server) Put(plural string, v any) {
	o := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(encode(v), &o.Object); err != nil {
		panic(fmt.Sprintf("apiserver: %T is not an object: %v", v, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(s.kinds[plural], o)
}

// Remove deletes an object; false if it does not exist.
func (s *Server) Remove(plural, namespace, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(s.kinds[plural], namespace+"/"+name)
}

// Read fills into with an object's JSON; false if it does not exist.
func (s *Server) Read(plural, namespace, name string, into any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.kinds[plural].objects[namespace+"/"+name]
	return o != nil && json.Unmarshal(o, into) == nil
}

// Names returns the names of a kind's objects, sorted.
func (s *Server) Names(plural string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.kinds[plural].objects {
		_, name, _ := strings.Cut(key, "/")
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Requests returns how many requests of a method there were for a kind.
func (s *Server) Requests(method, plural string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[method+" "+plural]
}

// Down makes the server reject all requests for objects and end all watches; false makes it answer again.
func (s *Server) Down(down bool) {
	for plural := range s.kinds {
		s.KindDown(plural, down)
	}
}

// KindDown is Down for one kind of objects, as if its requests alone were lost.
func (s *Server) KindDown(plural string, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kinds[plural]
	k.down = down
	for w := range k.watchers {
		k.drop(w)
	}
}

// path is a request's path, taken apart.
type path struct{ apiVersion, namespace, plural, name, sub string }

func (p *path) key() string { return p.namespace + "/" + p.name }

func parsePath(text string) (p path) {
	parts := strings.Split(strings.Trim(text, "/"), "/")
	group := 2
	if parts[0] == "apis" {
		group = 3
	}
	if len(parts) <= group {
		return path{}
	}
	p.apiVersion, parts = strings.Join(parts[1:group], "/"), parts[group:]
	if len(parts) >= 3 && parts[0] == "namespaces" {
		p.namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "")
	p.plural, p.name, p.sub = parts[0], parts[1], parts[2]
	return p
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if watching := r.URL.Query().Get("watch"); watching == "true" || watching == "1" {
		s.watch(w, r)
		return
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return // The client is gone.
	}
	s.mu.Lock()
	answer, err := s.answer(r, content)
	s.mu.Unlock()
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, http.StatusOK, answer)
}

// find returns the kind that a request is for.
func (s *Server) find(method string, r *http.Request) (*kind, path, error) {
	at := parsePath(r.URL.Path)
	k := s.kinds[at.plural]
	switch {
	case k == nil || k.APIVersion != at.apiVersion:
		return nil, at, apierrors.NewNotFound(schema.GroupResource{Resource: at.plural}, at.name)
	case k.down:
		return nil, at, apierrors.NewServiceUnavailable("down")
	}
	s.requests[method+" "+at.plural]++
	return k, at, nil
}

// answer does what a request asks for, unless it is a watch.
func (s *Server) answer(r *http.Request, content []byte) (any, error) {
	if group, ok := strings.CutPrefix(r.URL.Path, "/apis/"); ok && !strings.Contains(group, "/") {
		return s.group(group)
	}
	k, at, err := s.find(r.Method, r)
	if err != nil {
		return nil, err
	}
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: at.plural}, at.name)
	switch {
	case r.Method == http.MethodGet && at.name == "":
		return s.list(r, k, at.namespace), nil
	case r.Method == http.MethodGet && k.objects[at.key()] == nil:
		return nil, missing
	case r.Method == http.MethodGet:
		return json.RawMessage(k.objects[at.key()]), nil
	case r.Method == http.MethodDelete && !s.remove(k, at.key()):
		return nil, missing
	case r.Method == http.MethodDelete:
		return typed(&metav1.Status{Status: metav1.StatusSuccess}), nil
	}
	return s.write(r, k, at, content)
}

// group returns the version of an API group.
func (s *Server) group(name string) (any, error) {
	for _, k := range s.kinds {
		if gvk := k.gvk(); gvk.Group == name {
			v := metav1.GroupVersionForDiscovery{GroupVersion: k.APIVersion, Version: gvk.Version}
			return &metav1.APIGroup{
				TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: name,
				Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v,
			}, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: name}, "")
}

func (s *Server) list(r *http.Request, k *kind, namespace string) any {
	match, items := matcher(r), []json.RawMessage{}
	for key, o := range k.objects {
		if match(o) && (namespace == "" || strings.HasPrefix(key, namespace+"/")) {
			items = append(items, o)
		}
	}
	return map[string]any{
		"kind": k.Name + "List", "apiVersion": k.APIVersion, "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.FormatInt(s.version, 10)},
	}
}

// matcher reads the selectors of a request. An invalid one selects nothing.
func matcher(r *http.Request) func([]byte) bool {
	q := r.URL.Query()
	byField, err := fields.ParseSelector(q.Get("fieldSelector"))
	byLabel, invalid := labels.Parse(q.Get("labelSelector"))
	if err != nil || invalid != nil {
		return func([]byte) bool { return false }
	}
	if byField.Empty() && byLabel.Empty() {
		return func([]byte) bool { return true }
	}
	return func(content []byte) bool {
		o, set := decode(content), fields.Set{}
		for _, want := range byField.Requirements() {
			at := strings.Split(want.Field, ".")
			if want.Field == "source" { // Of an Event.
				at = append(at, "component")
			}
			set[want.Field], _, _ = unstructured.NestedString(o.Object, at...)
		}
		return byField.Matches(set) && byLabel.Matches(labels.Set(o.GetLabels()))
	}
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = send(w, encode(v)) // The client is gone.
}

func send(w http.ResponseWriter, content []byte) error {
	_, err := w.Write(content)
	return err
}

func fail(w http.ResponseWriter, err error) {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		status = apierrors.NewBadRequest(err.Error())
	}
	reply(w, int(status.ErrStatus.Code), typed(&status.ErrStatus))
}

func typed(s *metav1.Status) *metav1.Status {
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return s
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("apiserver: encode %T: %v", v, err))
	}
	return b
}

// decode reads what encode wrote.
func decode(content []byte) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(content); err != nil {
		panic(fmt.Sprintf("apiserver: decode: %v", err))
	}
	return o
}
