// Package apiserver is an API server in memory, for tests of what talks to one
// and cannot wait for a real one, and for fleets that would take a real one
// minutes to fill.
//
// It lists, watches (with initial events), creates, updates, deletes, merges
// and applies; of server-side apply it knows the ownership of labels, of
// resource versions that they grow. It validates nothing and knows no roles:
// what depends on that is tested on the real one.
package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// object is a decoded JSON object.
type object = map[string]any

// Server is the API server. Its methods are safe for concurrent use.
type Server struct {
	// mu guards the rest.
	mu       sync.Mutex
	version  int64
	kinds    map[string]*kind // By plural.
	requests map[string]int
	down     bool
	serial   int // Of the last UID.
}

// kind is one kind of objects.
type kind struct {
	Kind
	down     bool
	objects  map[string]*stored // By namespace/name.
	watchers map[*watcher]bool
}

// stored is an object as JSON: decoded, a fleet's would take a gigabyte.
type stored struct{ json []byte }

// value decodes it.
func (s *stored) value() object { return decode(json.RawMessage(s.json)) }

// Kind is a kind of objects that the server has.
type Kind struct {
	// APIVersion and Name as in an object; Plural as in a path.
	APIVersion, Name, Plural string
	// Immutable rejects changes of the spec.
	Immutable bool
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
		s.kinds[k.Plural] = &kind{Kind: k, objects: map[string]*stored{}, watchers: map[*watcher]bool{}}
	}
	return s
}

// Put adds or replaces an object of any type that encodes as one.
func (s *Server) Put(plural string, v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := decode(v)
	k := s.kinds[plural]
	if old := k.objects[keyOf(o)]; old != nil {
		meta(o)["uid"] = meta(old.value())["uid"]
	}
	s.store(k, o)
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
	return o != nil && json.Unmarshal(o.json, into) == nil
}

// Names returns the names of a kind's objects, sorted.
func (s *Server) Names(plural string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
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

// Down makes the server reject everything and end all watches; false makes it
// answer again.
func (s *Server) Down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	for _, k := range s.kinds {
		for w := range k.watchers {
			k.drop(w)
		}
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

func parsePath(p string) (path, bool) {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	var out path
	switch {
	case len(parts) >= 2 && parts[0] == "api":
		out.apiVersion, parts = parts[1], parts[2:]
	case len(parts) >= 3 && parts[0] == "apis":
		out.apiVersion, parts = parts[1]+"/"+parts[2], parts[3:]
	default:
		return out, false
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		out.namespace, parts = parts[1], parts[2:]
	}
	for i, into := range []*string{&out.plural, &out.name, &out.sub} {
		if i < len(parts) {
			*into = parts[i]
		}
	}
	return out, out.plural != ""
}

// ServeHTTP answers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if group, ok := strings.CutPrefix(r.URL.Path, "/apis/"); ok && !strings.Contains(group, "/") {
		s.group(w, group)
		return
	}
	at, ok := parsePath(r.URL.Path)
	s.mu.Lock()
	k := s.kinds[at.plural]
	if !ok || k == nil || k.APIVersion != at.apiVersion || s.down || k.down {
		down := s.down || k != nil && k.down
		s.mu.Unlock()
		if down {
			fail(w, http.StatusServiceUnavailable, "ServiceUnavailable", "down")
			return
		}
		fail(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
		return
	}
	q := r.URL.Query()
	watching := q.Get("watch") == "true" || q.Get("watch") == "1"
	method := r.Method
	if watching {
		method = "WATCH"
	}
	s.requests[method+" "+at.plural]++
	if watching {
		s.watch(w, r, k) // It unlocks.
		return
	}
	defer s.mu.Unlock()
	switch r.Method {
	case http.MethodGet:
		if at.name == "" {
			s.list(w, r, k, at.namespace)
			return
		}
		if o := k.objects[at.namespace+"/"+at.name]; o != nil {
			answer(w, r, o)
			return
		}
		fail(w, http.StatusNotFound, "NotFound", at.name+" not found")
	case http.MethodDelete:
		if !s.remove(k, at.namespace+"/"+at.name) {
			fail(w, http.StatusNotFound, "NotFound", at.name+" not found")
			return
		}
		reply(w, http.StatusOK, object{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	default:
		s.write(w, r, k, at)
	}
}

// group answers which versions an API group has.
func (s *Server) group(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		if group, version, _ := strings.Cut(k.APIVersion, "/"); group == name {
			v := object{"groupVersion": k.APIVersion, "version": version}
			reply(w, http.StatusOK, object{
				"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": []any{v}, "preferredVersion": v,
			})
			return
		}
	}
	fail(w, http.StatusNotFound, "NotFound", "no such group")
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, k *kind, namespace string) {
	match := matcher(r)
	items := []json.RawMessage{}
	for key, o := range k.objects {
		if match(o) && (namespace == "" || strings.HasPrefix(key, namespace+"/")) {
			items = append(items, shape(r, o))
		}
	}
	kindName, version := k.Name+"List", k.APIVersion
	if partial(r) {
		kindName, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	reply(w, http.StatusOK, object{
		"kind": kindName, "apiVersion": version, "items": items,
		"metadata": object{"resourceVersion": strconv.FormatInt(s.version, 10)},
	})
}

// matcher reads the selectors of a request.
func matcher(r *http.Request) func(*stored) bool {
	q := r.URL.Query()
	byField, errFields := fields.ParseSelector(q.Get("fieldSelector"))
	byLabel, errLabels := labels.Parse(q.Get("labelSelector"))
	return func(s *stored) bool {
		if errFields != nil || errLabels != nil {
			return false
		}
		if byField.Empty() && byLabel.Empty() {
			return true
		}
		o := s.value()
		set := fields.Set{"metadata.name": text(meta(o)["name"])}
		if spec, ok := o["spec"].(object); ok {
			set["spec.nodeName"] = text(spec["nodeName"])
		}
		if status, ok := o["status"].(object); ok {
			set["status.phase"] = text(status["phase"])
		}
		if source, ok := o["source"].(object); ok {
			set["source"] = text(source["component"])
		}
		return byField.Matches(set) && byLabel.Matches(labels.Set(labelsOf(o)))
	}
}

func partial(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

// shape returns an object as the client wants it.
func shape(r *http.Request, o *stored) json.RawMessage {
	if !partial(r) {
		return o.json
	}
	return encode(object{
		"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o.value()["metadata"],
	})
}

func answer(w http.ResponseWriter, r *http.Request, o *stored) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(shape(r, o))
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(encode(v))
}

func fail(w http.ResponseWriter, code int, reason, message string, causes ...any) {
	reply(w, code, object{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
		"details": object{"causes": causes},
	})
}

func decode(v any) object {
	var o object
	if err := json.Unmarshal(encode(v), &o); err != nil {
		panic(fmt.Sprintf("apiserver: %T is not an object: %v", v, err))
	}
	if _, ok := o["metadata"].(object); !ok {
		o["metadata"] = object{}
	}
	return o
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("apiserver: encode %T: %v", v, err))
	}
	return b
}

func meta(o object) object {
	m, _ := o["metadata"].(object)
	return m
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func keyOf(o object) string { return text(meta(o)["namespace"]) + "/" + text(meta(o)["name"]) }

func labelsOf(o object) map[string]string {
	out := map[string]string{}
	in, _ := meta(o)["labels"].(object)
	for key, value := range in {
		out[key] = text(value)
	}
	return out
}
