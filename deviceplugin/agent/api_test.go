package agent

import (
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/internal/kube"
)

// api answers as an API server of one Node and its pods would, and keeps what
// is written.
type api struct {
	tb  testing.TB
	url string

	mu      sync.Mutex
	version int
	node    *corev1.Node
	pods    []*corev1.Pod
	// watches get every change of their kind.
	watches map[chan<- metav1.WatchEvent]string
	// note is closed after every write.
	note chan struct{}

	// conditions are HeddleReady as it was written, pending HeddleModePending.
	conditions, pending []health.Condition
	// annotations are the Node's after each write of them, and shares the values
	// of SharedGPUs; bound are the values of SGPUBound by pod.
	annotations []map[string]string
	shares      []string
	bound       map[string][]string
	notices     []string
	warnings    []string
	evicted     []string
	// claimed are the DeviceClasses by the resource that they stand for.
	claimed map[string]string

	// hang makes every request wait for its context, reject makes writes fail.
	hang, reject bool
	// absent: the Node is not there. unlisted: pods cannot be listed.
	absent, unlisted bool
}

func newAPI(tb testing.TB) *api {
	tb.Helper()
	a := &api{
		tb: tb, version: 1, watches: map[chan<- metav1.WatchEvent]string{}, note: make(chan struct{}), bound: map[string][]string{},
	}
	a.node = &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	a.node.Name, a.node.UID, a.node.ResourceVersion = node, "node-uid", "1"
	server := httptest.NewServer(a)
	a.url = server.URL
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return a
}

func (a *api) client() *apiserver.Client {
	a.tb.Helper()
	client, err := kube.ClientFor(&rest.Config{Host: a.url, QPS: -1}, "test")
	if err != nil {
		a.tb.Fatal(err)
	}
	return apiserver.New(client, node, slog.New(slog.DiscardHandler))
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	kind := "pods"
	if strings.HasPrefix(r.URL.Path, "/api/v1/nodes") {
		kind = "nodes"
	}
	a.mu.Lock()
	hang := a.hang
	a.mu.Unlock()
	q := r.URL.Query()
	switch {
	case hang:
		<-r.Context().Done()
	case q.Get("sendInitialEvents") != "":
		failed(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case q.Get("watch") != "":
		a.watch(w, r, kind)
	case r.Method == http.MethodGet:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.read(w, r)
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.write(w, r, body)
		close(a.note)
		a.note = make(chan struct{})
	}
}

func failed(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code),
	})
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, kind string) {
	events := make(chan metav1.WatchEvent, 1000)
	a.mu.Lock()
	// What changed between the list and the watch.
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if v, _ := strconv.Atoi(a.node.ResourceVersion); kind == "nodes" && !a.absent && v > from {
		events <- event("MODIFIED", a.node)
	}
	for _, p := range a.pods {
		if v, _ := strconv.Atoi(p.ResourceVersion); kind == "pods" && v > from {
			events <- event("MODIFIED", p)
		}
	}
	a.watches[events] = kind
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.watches, events)
	}()
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func event(what string, object any) metav1.WatchEvent {
	raw, _ := json.Marshal(object)
	e := metav1.WatchEvent{Type: what}
	e.Object.Raw = raw
	return e
}

func (a *api) read(w http.ResponseWriter, r *http.Request) {
	list := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	at := slices.IndexFunc(a.pods, func(p *corev1.Pod) bool { return strings.HasSuffix(r.URL.Path, "/"+p.Namespace+"/pods/"+p.Name) })
	var answer any
	switch {
	case r.URL.Path == "/api/v1/nodes":
		all := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: list}
		if !a.absent {
			all.Items = []corev1.Node{*a.node}
		}
		answer = all
	case r.URL.Path == "/api/v1/nodes/"+node && !a.absent:
		answer = a.node
	case r.URL.Path == "/api/v1/pods" && !a.unlisted:
		all := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: list}
		for _, p := range a.pods {
			all.Items = append(all.Items, *p)
		}
		answer = all
	case strings.HasSuffix(r.URL.Path, "/deviceclasses"):
		var items []any
		for resource, class := range a.claimed {
			items = append(items, map[string]any{
				"metadata": map[string]any{"name": class}, "spec": map[string]any{"extendedResourceName": resource},
			})
		}
		answer = map[string]any{"items": items}
	case at >= 0:
		answer = a.pods[at]
	default:
		failed(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// write takes Events, evictions, and patches of annotations and conditions.
func (a *api) write(w http.ResponseWriter, r *http.Request, body []byte) {
	name := strings.TrimSuffix(r.URL.Path, "/eviction")
	name = name[strings.LastIndex(name, "/")+1:]
	if a.reject && !strings.HasSuffix(r.URL.Path, "/events") {
		failed(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	}
	var answer any = a.node
	switch {
	case strings.HasSuffix(r.URL.Path, "/events"):
		var e corev1.Event
		_ = json.Unmarshal(body, &e)
		if about := e.InvolvedObject; about.Kind == "Node" {
			a.notices = append(a.notices, e.Reason+" "+e.Message)
		} else {
			a.warnings = append(a.warnings, about.Namespace+"/"+about.Name+" "+e.Reason+": "+e.Message)
		}
		answer = e
	case strings.HasSuffix(r.URL.Path, "/eviction"):
		var eviction struct {
			DeleteOptions metav1.DeleteOptions `json:"deleteOptions"`
		}
		_ = json.Unmarshal(body, &eviction)
		a.evicted = append(a.evicted, "default/"+name+" "+string(*eviction.DeleteOptions.Preconditions.UID))
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
	case strings.HasSuffix(r.URL.Path, "/status"):
		a.setCondition(body)
	default:
		var patch struct {
			Metadata struct {
				UID         types.UID          `json:"uid"`
				Annotations map[string]*string `json:"annotations"`
			} `json:"metadata"`
		}
		_ = json.Unmarshal(body, &patch)
		if strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
			a.annotateNode(patch.Metadata.Annotations)
			answer = a.node
			break
		}
		at := slices.IndexFunc(a.pods, func(p *corev1.Pod) bool { return p.Name == name })
		if at < 0 || a.pods[at].UID != patch.Metadata.UID {
			failed(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		value, has := patch.Metadata.Annotations[wellknown.SGPUBound]
		if has {
			a.bound[name] = append(a.bound[name], valueOf(value))
		}
		a.editLocked(name, func(p *corev1.Pod) { merge(p.Annotations, patch.Metadata.Annotations) })
		answer = a.pods[at]
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func merge(into map[string]string, patch map[string]*string) {
	for key, value := range patch {
		if value == nil {
			delete(into, key)
		} else {
			into[key] = *value
		}
	}
}

func (a *api) setCondition(body []byte) {
	var patch corev1.Node
	if err := json.Unmarshal(body, &patch); err != nil {
		a.tb.Error(err)
	}
	for _, c := range patch.Status.Conditions {
		written := health.Condition{
			Type: string(c.Type), True: c.Status == corev1.ConditionTrue, Reason: c.Reason, Message: c.Message,
		}
		if written.Type == gpumode.ConditionType {
			a.pending = append(a.pending, written)
		} else {
			a.conditions = append(a.conditions, written)
		}
		a.editNodeLocked(func(n *corev1.Node) {
			n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(old corev1.NodeCondition) bool { return old.Type == c.Type })
			n.Status.Conditions = append(n.Status.Conditions, c)
		})
	}
}

func (a *api) annotateNode(patch map[string]*string) {
	a.editNodeLocked(func(n *corev1.Node) { merge(n.Annotations, patch) })
	if value, has := patch[wellknown.SharedGPUs]; has {
		a.shares = append(a.shares, valueOf(value))
		return
	}
	a.annotations = append(a.annotations, maps.Clone(a.node.Annotations))
}

// editNode changes the Node.
func (a *api) editNode(change func(*corev1.Node)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.editNodeLocked(change)
}

func (a *api) editNodeLocked(change func(*corev1.Node)) {
	next := a.node.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	change(next)
	a.version++
	next.ResourceVersion = strconv.Itoa(a.version)
	a.node = next
	if !a.absent {
		a.send("nodes", event("MODIFIED", next))
	}
}

// show lets the Node be there, or not.
func (a *api) show(there bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absent = !there
	a.version++
	a.node = a.node.DeepCopy()
	a.node.ResourceVersion = strconv.Itoa(a.version)
	if there {
		a.send("nodes", event("ADDED", a.node))
	} else {
		a.send("nodes", event("DELETED", a.node))
	}
}

func (a *api) send(kind string, e metav1.WatchEvent) {
	for c, of := range a.watches {
		if of == kind {
			c <- e
		}
	}
}

// create adds a pod.
func (a *api) create(p *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.ResourceVersion, p.Spec.NodeName = strconv.Itoa(a.version), node
	a.pods = append(a.pods, p)
	a.send("pods", event("ADDED", p))
}

// removeAll deletes all pods.
func (a *api) removeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	for _, p := range a.pods {
		a.send("pods", event("DELETED", p))
	}
	a.pods = nil
}

// edit replaces a pod by a changed copy.
func (a *api) edit(name string, change func(*corev1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.editLocked(name, change)
}

func (a *api) editLocked(name string, change func(*corev1.Pod)) {
	for i, p := range a.pods {
		if p.Name != name {
			continue
		}
		p = p.DeepCopy()
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		change(p)
		a.version++
		p.ResourceVersion = strconv.Itoa(a.version)
		a.pods = slices.Clone(a.pods)
		a.pods[i] = p
		a.send("pods", event("MODIFIED", p))
	}
}

// pod is a pod as it is now.
func (a *api) pod(name string) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pods {
		if p.Name == name {
			return p
		}
	}
	a.tb.Fatalf("there is no pod %s", name)
	return nil
}

// boundOf are the values of SGPUBound that were written to a pod.
func (a *api) boundOf(pod string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.bound[pod])
}

// sharedGPUs are those of the Node's annotation.
func (a *api) sharedGPUs(t *testing.T) []allocation.GPU {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.shares) == 0 || a.shares[len(a.shares)-1] == "" {
		return nil
	}
	all, err := allocation.ParseNodeGPUs(a.shares[len(a.shares)-1])
	if err != nil {
		t.Fatal(err)
	}
	return all.GPUs
}

// wait blocks until ok, which is called with the lock held.
func (a *api) wait(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for {
		a.mu.Lock()
		done, note := ok(), a.note
		a.mu.Unlock()
		if done {
			return
		}
		select {
		case <-note:
		case <-tb.Context().Done():
		case <-time.After(20 * time.Second):
			a.mu.Lock()
			defer a.mu.Unlock()
			tb.Fatalf("%s did not come; conditions %v, notices %v, warnings %v", what, a.conditions, a.notices, a.warnings)
		}
	}
}
