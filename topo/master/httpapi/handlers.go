package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/manifest"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// nodeGroup is GET /node_group: the tree along axis=, or with kind= and name= the
// elements of it that match.
func (s *Server) nodeGroup(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	axis := fabric.AxisAuto
	if r.URL.RawQuery != "" {
		q := r.URL.Query()
		axis = cmp.Or(fabric.Axis(q.Get("axis")), axis)
		if axis != fabric.AxisAuto && axis != fabric.AxisFabric && axis != fabric.AxisNVLink {
			http.Error(w, "the axes are auto, fabric and nvlink", http.StatusBadRequest)
			return
		}
		if kind, name := q.Get("kind"), q.Get("name"); kind != "" || name != "" {
			s.selected(w, r, s.along(now, axis).Select(kind, name))
			return
		}
	}
	if len(now.Tree.Crossing) > 0 {
		w.Header().Set(v1alpha1.CrossingHeader, s.along(now, fabric.AxisNVLink).ETag())
	}
	tree := s.along(now, axis)
	d, err := s.documents.get(string(axis), tree.ETag(), func() (*document, error) {
		d, err := pack(tree.Write)
		if err == nil {
			d.tag = tree.ETag()
		}
		return d, err
	})
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.send(w, r, jsonType, d)
}

// selected answers with some elements. It computes their tag for each request, since the choices
// are too many to keep.
func (s *Server) selected(w http.ResponseWriter, r *http.Request, list []*fabric.Element) {
	var b bytes.Buffer
	if err := fabric.WriteElements(&b, list); err != nil {
		s.failed(w, r, err)
		return
	}
	s.answer(w, r, jsonType, b.Bytes())
}

// topology is GET /v1/topology.
func (s *Server) topology(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	s.kept(w, r, now, now.Mapped, func() any { return now.Topology() })
}

// gangs is GET /v1/gangs: all of them, or with namespace= and state= those that
// match.
func (s *Server) gangs(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	q := r.URL.Query()
	namespace, state := q.Get("namespace"), gang.Phase(q.Get("state"))
	if state != "" && !slices.Contains(gang.Phases(), state) {
		names := make([]string, 0, len(gang.Phases()))
		for _, p := range gang.Phases() {
			names = append(names, string(p))
		}
		http.Error(w, "the states are "+strings.Join(names, ", "), http.StatusBadRequest)
		return
	}
	if namespace != "" || state != "" {
		s.encode(w, r, now.SelectGangs(namespace, state))
		return
	}
	s.kept(w, r, now, now.Generation, func() any { return now.SelectGangs("", "") })
}

// why is GET /v1/why: why a pod or a gang has no node, as heddle why has it.
func (s *Server) why(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	q := r.URL.Query()
	namespace, name := q.Get("namespace"), q.Get("name")
	if namespace == "" || name == "" {
		http.Error(w, "ask for ?namespace= and &name= of a pod or a gang", http.StatusBadRequest)
		return
	}
	answer, err := s.options.Pending.Explain(r.Context(), now.Tree.Groups(), namespace, name)
	if err == nil && answer.API != "" {
		answer.Avoids, _ = s.options.Suspects.Avoid(namespace+"/"+answer.Name, time.Now())
	}
	s.listed(w, r, answer, err)
}

// suspects is GET /v1/suspects: the nodes and groups on which gangs failed, and with gang=NAMESPACE/NAME what that gang
// avoids.
func (s *Server) suspects(w http.ResponseWriter, r *http.Request, _ *snapshot.Snapshot) {
	answer := suspect.Answer{Suspects: s.options.Suspects.Places(time.Now())}
	if of := r.URL.Query().Get("gang"); of != "" {
		answer.Avoids, _ = s.options.Suspects.Avoid(of, time.Now())
	}
	s.encode(w, r, answer)
}

// maxManifest bounds the body of POST /v1/plan.
const maxManifest = 4 << 20

// plan is POST /v1/plan: whether the pods of the manifest in the body would get nodes, as heddle plan has it. Objects
// without a namespace are in namespace=.
func (s *Server) plan(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	namespace := cmp.Or(r.URL.Query().Get("namespace"), corev1.NamespaceDefault)
	set, err := manifest.Read(http.MaxBytesReader(w, r.Body, maxManifest), namespace)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.options.Pending.Fit(r.Context(), now.Tree.Groups(), set)
	s.listed(w, r, answer, err)
}

// listed answers with what the API server listed, or why there is nothing.
func (s *Server) listed(w http.ResponseWriter, r *http.Request, answer any, err error) {
	switch {
	case errors.Is(err, explain.ErrUnknown):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, explain.ErrManifest):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, explain.ErrTooLarge):
		http.Error(w, err.Error(), http.StatusNotImplemented)
	case err != nil:
		s.failed(w, r, err)
	default:
		s.encode(w, r, answer)
	}
}

// node is GET /v1/nodes/{name}.
func (s *Server) node(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	n, ok := now.Node(r.PathValue("name"), time.Now())
	if !ok {
		http.Error(w, "node not found", http.StatusNotFound)
		return
	}
	places := s.options.Suspects.Places(time.Now())
	if i := slices.IndexFunc(places, func(p suspect.Place) bool { return p.Name == n.Name }); i >= 0 {
		n.Suspect = &places[i]
	}
	n.Changes = s.options.History.Of(r.Context(), n.Name)
	s.encode(w, r, n)
}

// pods is GET /v1/pods: the pods that hold GPUs of a node, and the state of its GPUs.
func (s *Server) pods(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	name := r.URL.Query().Get("node")
	if n := now.Nodes[name]; n == nil || n.Node == nil {
		http.Error(w, "ask for the ?node= of a Node", http.StatusNotFound)
		return
	}
	use, err := s.options.Consumers.Of(r.Context(), name)
	s.listed(w, r, use, err)
}

// nodes is GET /v1/nodes: the names of the Nodes that label= selects and where pods of namespace= hold GPUs.
func (s *Server) nodes(w http.ResponseWriter, r *http.Request, _ *snapshot.Snapshot) {
	q := r.URL.Query()
	namespace := q.Get("namespace")
	selector, err := labels.Parse(q.Get("label"))
	switch {
	case err != nil:
		http.Error(w, "label: "+err.Error(), http.StatusBadRequest)
		return
	case namespace == "" && selector.Empty():
		http.Error(w, "ask for a ?label= selector, a ?namespace= or both", http.StatusBadRequest)
		return
	case namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0:
		http.Error(w, fmt.Sprintf("namespace: invalid name %.100q", namespace), http.StatusBadRequest)
		return
	}
	names, err := s.options.Consumers.Nodes(r.Context(), selector, namespace)
	s.listed(w, r, map[string][]string{"nodes": names}, err)
}

// ports is GET /v1/ports: the ports of a group, or of a switch.
func (s *Server) ports(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	q := r.URL.Query()
	query := snapshot.PortQuery{
		Kind: q.Get("kind"), Group: q.Get("group"), Switch: q.Get("switch"), SwitchPort: q.Get("port"),
	}
	if (query.Group == "") == (query.Switch == "") {
		http.Error(w, "ask for ?group=, or for ?switch= and its &port=", http.StatusBadRequest)
		return
	}
	list, ok := now.Ports(query)
	if !ok {
		http.Error(w, "group not found", http.StatusNotFound)
		return
	}
	s.encode(w, r, list)
}

// list is Kubernetes' List: kubectl apply takes it.
type list struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      any    `json:"items"`
}

// export is GET /v1/export/{format}: the tree in the format of another project.
func (s *Server) export(w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot) {
	tiers := export.TiersOf(now.Levels, now.Tree)
	var items any
	var err error
	switch r.PathValue("format") {
	case export.FormatSlurm:
		s.text(w, r, func(b *bytes.Buffer) error { return export.SlurmTree(b, now.Tree) })
		return
	case export.FormatSlurmBlock:
		kind := r.URL.Query().Get("kind")
		s.text(w, r, func(b *bytes.Buffer) error { return export.SlurmBlock(b, now.Tree, tiers, kind) })
		return
	case export.FormatSlurmYAML:
		s.text(w, r, func(b *bytes.Buffer) error { return export.SlurmYAML(b, now.Tree, tiers) })
		return
	case export.FormatHyperNode:
		items, err = export.HyperNodes(now.Tree, tiers, true)
	case export.FormatKueue:
		items, err = export.Topologies(export.KueueGroup+"/"+export.KueueVersion, now.Tree)
	case export.FormatKAI:
		items, err = export.Topologies(export.KAIGroup+"/"+export.KAIVersion, now.Tree)
	case export.FormatLabels:
		items = export.LabeledNodes(now.Tree)
	default:
		http.Error(w, "the formats are "+strings.Join(export.Formats(), ", "), http.StatusNotFound)
		return
	}
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.encode(w, r, list{"v1", "List", items})
}

// text answers with plain text. An error is the request's fault.
func (s *Server) text(w http.ResponseWriter, r *http.Request, write func(*bytes.Buffer) error) {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.answer(w, r, "text/plain; charset=utf-8", b.Bytes())
}

// encode answers with a value.
func (s *Server) encode(w http.ResponseWriter, r *http.Request, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.answer(w, r, jsonType, append(body, '\n'))
}

// answer sends a body that is made for this request.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	d, err := pack(func(w io.Writer) error {
		_, err := w.Write(body)
		return err
	})
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.send(w, r, contentType, d)
}

// failed answers what no client can help.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	s.options.Log.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "err", err)
	for _, key := range []string{"ETag", "Content-Encoding", "Content-Length"} {
		w.Header().Del(key)
	}
	http.Error(w, "internal error", http.StatusInternalServerError)
}
