package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// FieldManager owns what the worker applies.
const FieldManager = "heddle-topo-worker"

// Publisher writes one node's NodeTopology. It keeps no state.
type Publisher struct {
	client rest.Interface
	node   string
}

// NewPublisher returns a Publisher for a node. Any client of the API server
// will do: paths are absolute.
func NewPublisher(client rest.Interface, node string) *Publisher {
	return &Publisher{client: client, node: node}
}

// Node reads the metadata of the Node that owns the NodeTopology.
func (p *Publisher) Node(ctx context.Context) (*metav1.ObjectMeta, error) {
	node := &metav1.PartialObjectMetadata{}
	if err := do(ctx, p.client.Get().AbsPath("/api/v1/nodes", p.node), node); err != nil {
		return nil, fmt.Errorf("read node %s: %w", p.node, err)
	}
	return &node.ObjectMeta, nil
}

// Load reads the NodeTopology from the API server's cache, which costs etcd nothing. It returns nil
// if the object does not exist.
func (p *Publisher) Load(ctx context.Context) (*v1alpha1.NodeTopology, error) {
	nt := &v1alpha1.NodeTopology{}
	err := do(ctx, p.client.Get().AbsPath(p.path()).Param("resourceVersion", "0"), nt)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // No object is a state, not an error.
	}
	if err != nil {
		return nil, fmt.Errorf("read NodeTopology %s: %w", p.node, err)
	}
	return nt, nil
}

// Apply writes the NodeTopology's spec by server-side apply, which removes missing fields. The Node
// owns the object, so that it is garbage-collected with the Node.
func (p *Publisher) Apply(
	ctx context.Context, owner types.UID, spec *v1alpha1.NodeTopologySpec,
) (*v1alpha1.NodeTopology, error) {
	// An apply that takes the last field out of spec makes it null, which the
	// schema rejects. So rails are always present, if need be as an empty list.
	whole := struct {
		*v1alpha1.NodeTopologySpec
		Rails []v1alpha1.Rail `json:"rails"`
	}{spec, append([]v1alpha1.Rail{}, spec.Rails...)}
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": v1alpha1.Kind,
		"metadata": map[string]any{"name": p.node, "ownerReferences": []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: p.node, UID: owner,
		}}},
		"spec": whole,
	})
	if err != nil {
		return nil, fmt.Errorf("encode NodeTopology %s: %w", p.node, err)
	}
	nt := &v1alpha1.NodeTopology{}
	options := &metav1.PatchOptions{FieldManager: FieldManager, Force: new(true)}
	err = do(ctx, p.client.Patch(types.ApplyPatchType).AbsPath(p.path()).
		VersionedParams(options, metav1.ParameterCodec).Body(body), nt)
	if err != nil {
		return nil, fmt.Errorf("apply NodeTopology %s: %w", p.node, err)
	}
	return nt, nil
}

// Beat writes the heartbeat blindly, by a merge patch without a version, and
// returns the object as it then is; nil if it is gone.
func (p *Publisher) Beat(ctx context.Context, at time.Time) (*v1alpha1.NodeTopology, error) {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"heartbeatTime": metav1.NewTime(at)}})
	if err != nil {
		return nil, fmt.Errorf("encode heartbeat: %w", err)
	}
	nt := &v1alpha1.NodeTopology{}
	err = do(ctx, p.client.Patch(types.MergePatchType).AbsPath(p.path(), "status").
		VersionedParams(&metav1.PatchOptions{FieldManager: FieldManager}, metav1.ParameterCodec).Body(body), nt)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // As in Load.
	}
	if err != nil {
		return nil, fmt.Errorf("write heartbeat of NodeTopology %s: %w", p.node, err)
	}
	return nt, nil
}

func (p *Publisher) path() string {
	gv := v1alpha1.GroupVersion()
	return "/apis/" + gv.Group + "/" + gv.Version + "/" + v1alpha1.Plural + "/" + p.node
}

// requestTime bounds one request to the API server.
const requestTime = 20 * time.Second

func do(ctx context.Context, r *rest.Request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	answer := r.Do(ctx)
	// Error reads the API server's reasons out of the body, which Raw does not.
	if err := answer.Error(); err != nil {
		return err
	}
	b, err := answer.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// A heartbeat is a write, and an event to each topo-master, of every node, so it is as rare as
// possible. Between heartbeats the object is read for changes by others, after 60 to 90 s. Both are
// spread, so that the nodes of a cluster do not ask together.
const (
	beatSpread = v1alpha1.HeartbeatInterval / 10
	readEvery  = 60 * time.Second
	readSpread = 30 * time.Second
)

// published holds the known state of the object in the API server.
type published struct {
	loaded bool
	// there reports whether the object exists.
	there bool
	owner types.UID
	// sent is the spec applied last, answered and seen are the API server's
	// version of it, after that write and now: it may drop fields that its
	// schema does not know, which does not call for another write.
	sent, answered, seen v1alpha1.NodeTopologySpec
	// leaves is the status' list walk.
	leaves             []string
	nextBeat, nextRead time.Time
}

// timer fires when a heartbeat or a read of the object is due.
func (p *published) timer() <-chan time.Time {
	if !p.there {
		return nil
	}
	return time.After(max(min(time.Until(p.nextBeat), time.Until(p.nextRead)), time.Second))
}

// load reads the published object, once: it is also the memory of an earlier worker. An object of
// an earlier Node with this name does not count.
func (w *Worker) load(ctx context.Context) error {
	s := &w.state
	if s.loaded {
		return nil
	}
	nt, err := w.Publisher.Load(ctx)
	if err != nil || nt == nil {
		s.loaded = err == nil
		return err
	}
	node, err := w.readNode(ctx)
	if err != nil {
		return err
	}
	w.memory = nt.Spec
	s.sent, s.answered, s.seen, s.leaves = nt.Spec, nt.Spec, nt.Spec, nt.Status.Walk
	for _, o := range nt.OwnerReferences {
		s.owner = o.UID
	}
	if at := nt.Status.HeartbeatTime; at != nil {
		// A clock that was set back delays no heartbeat for longer.
		s.nextBeat = time.Now().Add(min(v1alpha1.HeartbeatInterval-time.Since(at.Time), v1alpha1.HeartbeatInterval))
	}
	s.loaded, s.there = true, s.owner == node
	return nil
}

// readNode reads the Node's labels, and returns its UID.
func (w *Worker) readNode(ctx context.Context) (types.UID, error) {
	node, err := w.Publisher.Node(ctx)
	if err != nil {
		return "", err
	}
	w.labels, w.labelsAt = node.Labels, time.Now()
	return node.UID, nil
}

// publish writes the spec if the API server has another one, and the heartbeat if
// it is due, or reads the object. An object that is gone by then was deleted by
// hand, or collected with an earlier Node, and is made once more.
func (w *Worker) publish(ctx context.Context, spec *v1alpha1.NodeTopologySpec) error {
	for range 2 {
		if err := w.apply(ctx, spec); err != nil {
			return err
		}
		w.Metrics.isReady.Store(true)
		if err := w.follow(ctx); err != nil || w.state.there {
			return err
		}
	}
	return fmt.Errorf("the NodeTopology %s was deleted as it was written", w.NodeName)
}

func (w *Worker) apply(ctx context.Context, spec *v1alpha1.NodeTopologySpec) (err error) {
	s := &w.state
	if s.there && equality.Semantic.DeepEqual(*spec, s.sent) && equality.Semantic.DeepEqual(s.seen, s.answered) {
		return nil
	}
	if !s.there {
		if s.owner, err = w.readNode(ctx); err != nil {
			return err
		}
	}
	nt, err := w.Publisher.Apply(ctx, s.owner, spec)
	if err != nil {
		return err
	}
	switch {
	case s.there:
	case nt.Status.HeartbeatTime == nil: // Its creation counts as the first one.
		s.nextBeat = nextBeat(nt.CreationTimestamp.Time)
	default: // It is of an earlier Node.
		s.nextBeat = time.Time{}
	}
	s.there, s.sent, s.answered, s.seen, s.leaves = true, *spec, nt.Spec, nt.Spec, nt.Status.Walk
	s.read()
	w.Metrics.writes.Inc()
	w.log(ctx, spec)
	return nil
}

// read puts the next read off: an API server's cache may be behind a write.
func (p *published) read() {
	p.nextRead = time.Now().Add(readEvery + rand.N(readSpread)) //nolint:gosec // Not for secrets.
}

// nextBeat returns when the heartbeat after another one is due.
func nextBeat(last time.Time) time.Time {
	return last.Add(v1alpha1.HeartbeatInterval - rand.N(beatSpread)) //nolint:gosec // Not for secrets.
}

// follow writes the heartbeat or reads the object, whichever is due. The response has the leaves to
// discover, and shows whether another writer changed the spec or deleted it.
func (w *Worker) follow(ctx context.Context) (err error) {
	s, now := &w.state, time.Now()
	var nt *v1alpha1.NodeTopology
	beats := !now.Before(s.nextBeat)
	switch {
	case beats:
		nt, err = w.Publisher.Beat(ctx, w.passed)
	case !now.Before(s.nextRead):
		nt, err = w.Publisher.Load(ctx)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if nt == nil {
		s.there = false
		return nil
	}
	if beats {
		w.Metrics.beats.Inc()
		s.nextBeat = nextBeat(now)
	}
	s.read()
	if !slices.Equal(s.leaves, nt.Status.Walk) || !equality.Semantic.DeepEqual(nt.Spec, s.answered) {
		w.Changed.Notify()
	}
	s.seen, s.leaves = nt.Spec, nt.Status.Walk
	return nil
}

// log reports what was published.
func (w *Worker) log(ctx context.Context, spec *v1alpha1.NodeTopologySpec) {
	known := 0
	for i := range spec.Rails {
		if spec.Rails[i].Switch != nil {
			known++
		}
	}
	w.Log.InfoContext(ctx, "topology published", "rails", len(spec.Rails), "switches_known", known,
		"nvlink_domain", spec.NVLinkDomain, "path", spec.Path, "uplinks", len(spec.Uplinks), "skipped", len(spec.Skipped))
	for _, s := range spec.Skipped {
		w.Log.DebugContext(ctx, "skipped", "name", s.Name, "reason", s.Reason)
	}
}
