package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

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

// Load reads the NodeTopology; nil if there is none.
func (p *Publisher) Load(ctx context.Context) (*v1alpha1.NodeTopology, error) {
	nt := &v1alpha1.NodeTopology{}
	err := do(ctx, p.client.Get().AbsPath(p.path()), nt)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // No object is a state, not an error.
	}
	if err != nil {
		return nil, fmt.Errorf("read NodeTopology %s: %w", p.node, err)
	}
	return nt, nil
}

// Apply makes the NodeTopology's spec this one, by server-side apply: what is
// no longer in it goes away. The object belongs to the Node and is collected
// with it.
func (p *Publisher) Apply(
	ctx context.Context, owner types.UID, spec *v1alpha1.NodeTopologySpec,
) (*v1alpha1.NodeTopology, error) {
	// An apply that takes the last field out of spec makes it null, which the
	// schema rejects: so rails are always there, if need be as an empty list.
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
	err = do(ctx, p.client.Patch(types.ApplyPatchType).AbsPath(p.path()).
		VersionedParams(&metav1.PatchOptions{FieldManager: FieldManager, Force: new(true)}, metav1.ParameterCodec).Body(body), nt)
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
