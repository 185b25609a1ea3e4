// Package apiserver is the API server, as far as the device plugin of one node
// needs it: the Node and its pods as they are watched, Events, annotations, the
// Node's conditions, evictions, and which resources DeviceClasses claim.
//
// It decides nothing: it reads and writes what its callers ask. A call that a
// pod's start waits for takes no longer than its context. Without an API server
// the Client is nil: then nothing is known, and nothing is written.
package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// component names the device plugin in Events and managedFields.
const component = "heddle-device-plugin"

// ErrOffline is the answer of a nil Client to what has no other.
var ErrOffline = errors.New("no API server")

// Client is a client for one Node. Its methods may be called at once. A nil Client knows no
// Node and no pods; ReadPod, AnnotateNode, AnnotatePod and Evict, which take one, are not for it.
type Client struct {
	core typed.CoreV1Interface
	node string
	log  *slog.Logger
	// nodeWatch and pods watch the Node and its pods.
	nodeWatch   *nodesync.Watch
	pods        *pods
	events      record.EventRecorder
	broadcaster record.EventBroadcaster
	evictions   *rate.Limiter
	classes     deviceClasses
}

// New returns a client for one Node; Run keeps it current.
func New(client rest.Interface, node string, log *slog.Logger) *Client {
	c := &Client{
		core: typed.New(client), node: node, log: log, pods: newPods(client, node),
		nodeWatch: nodesync.NewWatch(client, node, wellknown.HAMiLock, wellknown.HAMiGPUs),
		evictions: rate.NewLimiter(rate.Every(evictEvery), evictBurst),
	}
	c.events, c.broadcaster = newRecorder(c.core, node)
	return c
}

// Run watches the Node and its pods until ctx ends. It returns when all of that has ended; then no
// Event is sent any more.
func (c *Client) Run(ctx context.Context) error {
	if c == nil {
		return nil
	}
	defer c.broadcaster.Shutdown()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.pods.run(ctx) })
	return c.nodeWatch.Run(ctx)
}

// Online reports whether the client has an API server.
func (c *Client) Online() bool { return c != nil }

// Labels returns the Node's; nil while it is not known.
func (c *Client) Labels() map[string]string {
	switch n, _ := c.Node(); {
	case n == nil:
		return nil
	case n.Labels == nil:
		return map[string]string{}
	default:
		return n.Labels
	}
}

// Annotation returns an annotation of the Node; known is false while the Node is unknown.
func (c *Client) Annotation(key string) (value string, known bool) {
	n, _ := c.Node()
	if n == nil {
		return "", false
	}
	return n.Annotations[key], true
}

// Changed receives when Labels or the cordoned GPUs may differ. It has one
// reader.
func (c *Client) Changed() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.nodeWatch.Changed()
}

// Node returns the Node as it is watched, nil while it is not known. changed receives
// when annotations of HAMi's protocol may differ; it has one reader.
func (c *Client) Node() (node *corev1.Node, changed <-chan struct{}) {
	if c == nil {
		return nil, nil
	}
	return c.nodeWatch.Node(), c.nodeWatch.Followed()
}

// ReadNode asks for the Node.
func (c *Client) ReadNode(ctx context.Context) (*corev1.Node, error) {
	if c == nil {
		return nil, ErrOffline
	}
	return c.core.Nodes().Get(ctx, c.node, metav1.GetOptions{})
}

// ReadPod asks for a pod of any node.
func (c *Client) ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return c.core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// metadata is the metadata of a merge patch.
type metadata struct {
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	UID             types.UID          `json:"uid,omitempty"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
}

// patchNode merges a patch into the Node. What was written is known when it returns.
func (c *Client) patchNode(
	ctx context.Context, kind types.PatchType, body map[string]any, subresources ...string,
) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: component}
	node, err := c.core.Nodes().Patch(ctx, c.node, kind, text, options, subresources...)
	if err != nil {
		return fmt.Errorf("patch node %s: %w", c.node, err)
	}
	node.Status = corev1.NodeStatus{}
	c.nodeWatch.Keep(node)
	return nil
}

// Tainted reports whether the Node has a taint of this key and effect; known is false
// while the Node is not.
func (c *Client) Tainted(key string, effect corev1.TaintEffect) (tainted, known bool) {
	n, _ := c.Node()
	return n != nil && taintAt(n.Spec.Taints, key, effect) >= 0, n != nil
}

func taintAt(taints []corev1.Taint, key string, effect corev1.TaintEffect) int {
	return slices.IndexFunc(taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect })
}

// SetTaint adds a taint to the Node, or takes it away, unless it is watched to be so. Taints are one list:
// it is a conflict if another client writes the Node meanwhile.
func (c *Client) SetTaint(ctx context.Context, key string, effect corev1.TaintEffect, on bool) error {
	if tainted, known := c.Tainted(key, effect); known && tainted == on {
		return nil
	}
	node, err := c.ReadNode(ctx)
	if err != nil {
		return err
	}
	taints, at := node.Spec.Taints, taintAt(node.Spec.Taints, key, effect)
	switch {
	case on == (at >= 0):
		return nil
	case on:
		taints = append(taints, corev1.Taint{Key: key, Effect: effect})
	default:
		taints = slices.Delete(taints, at, at+1)
	}
	return c.patchNode(ctx, types.MergePatchType, map[string]any{
		"metadata": metadata{ResourceVersion: node.ResourceVersion}, "spec": map[string]any{"taints": taints},
	})
}

// AnnotatePod merges annotations into a pod; nil takes one away. The UID makes
// it a conflict if another pod has the name.
func (c *Client) AnnotatePod(
	ctx context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string,
) error {
	text, err := json.Marshal(map[string]metadata{"metadata": {UID: uid, Annotations: annotations}})
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: component}
	_, err = c.core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, text, options)
	return err
}

// Evict ends a pod by the Eviction API, which honors PodDisruptionBudgets. The
// UID makes it a conflict if another pod has the name.
func (c *Client) Evict(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
	return c.core.Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: metav1.NewPreconditionDeleteOptions(string(uid)),
	})
}

// SetConditions patches those conditions of the Node alone that it has not yet: the list is keyed by
// type in a strategic merge, so that the kubelet's own stay as they are. Annotations as [Client.ShowAnnotations]
// has them go with a write: the API server takes metadata in a patch of the status too.
func (c *Client) SetConditions(ctx context.Context, want []health.Condition, annotations map[string]string) error {
	node, err := c.ReadNode(ctx)
	if err != nil {
		return err
	}
	var changed []corev1.NodeCondition
	for _, w := range want {
		if next := transition(node.Status.Conditions, w); next != nil {
			changed = append(changed, *next)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return c.patchNode(ctx, types.StrategicMergePatchType, map[string]any{
		"metadata": metadata{Annotations: changes(node.Annotations, annotations)},
		"status":   map[string]any{"conditions": changed},
	}, "status")
}

// transition returns a condition to write, nil if the Node shows it.
func transition(all []corev1.NodeCondition, want health.Condition) *corev1.NodeCondition {
	now := metav1.NewTime(time.Now())
	next := &corev1.NodeCondition{
		Type: corev1.NodeConditionType(want.Type), Status: corev1.ConditionFalse, Reason: want.Reason, Message: want.Message,
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if want.True {
		next.Status = corev1.ConditionTrue
	}
	at := slices.IndexFunc(all, func(old corev1.NodeCondition) bool { return old.Type == next.Type })
	switch {
	case at < 0 && want.Optional && !want.True:
		return nil
	case at < 0 || all[at].Status != next.Status:
	case all[at].Reason == next.Reason && all[at].Message == next.Message:
		return nil
	default:
		next.LastTransitionTime = all[at].LastTransitionTime
	}
	return next
}

// Withdraw enters the Node in the ConfigMap of withdrawn nodes until a time, unless the given part of the nodes with a
// label, or one node if that is less, is entered already; then full says so. An entry counts until its time.
func (c *Client) Withdraw(
	ctx context.Context, list types.NamespacedName, label string, percent int, until time.Time,
) (full string, err error) {
	lists := c.core.ConfigMaps(list.Namespace)
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		entered, err := lists.Get(ctx, list.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		others := 0
		for node, text := range entered.Data {
			if end, err := time.Parse(time.RFC3339, text); err == nil && node != c.node && time.Now().Before(end) {
				others++
			}
		}
		if others > 0 { // One always may.
			var table metav1.Table // From the API server's cache, as rows: a Node is a hundred times larger.
			body, err := c.core.RESTClient().Get().Resource("nodes").Param("labelSelector", label).
				Param("resourceVersion", "0").Param("includeObject", string(metav1.IncludeNone)).
				SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
			if err == nil {
				err = json.Unmarshal(body, &table)
			}
			if err != nil {
				return fmt.Errorf("count nodes: %w", err)
			}
			if nodes := len(table.Rows); others >= max(1, nodes*percent/100) {
				full = fmt.Sprintf("%d of %d nodes are withdrawn, and health.maxWithdrawnPercent is %d", others, nodes, percent)
				return nil
			}
		}
		text := fmt.Appendf(nil, `{"metadata": {"resourceVersion": %q}, "data": {%q: %q}}`,
			entered.ResourceVersion, c.node, until.UTC().Format(time.RFC3339))
		_, err = lists.Patch(ctx, list.Name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: component})
		return err
	})
	return full, err
}

// listedFor is the time for which one list is used: every resource of every node asks.
const listedFor = time.Minute

// deviceClasses are the extended resources that DeviceClasses stand for: the
// scheduler hands such a request to DRA, and a device plugin's devices of the
// same name would be allocated a second time.
type deviceClasses struct {
	mu     sync.Mutex // guards all below; held while asking, so that one asks
	listed time.Time
	byName map[string]string // extended resource to DeviceClass
}

// DeviceClass names the DeviceClass that stands for a resource, such as
// "DeviceClass gpu.nvidia.com (spec.extendedResourceName)"; empty if none does,
// or without that API or the right to read it. An error means that it is not
// known.
func (c *Client) DeviceClass(ctx context.Context, resource string) (string, error) {
	if c == nil {
		return "", nil
	}
	known := &c.classes
	known.mu.Lock()
	defer known.mu.Unlock()
	if time.Since(known.listed) > listedFor {
		byName, err := c.listClasses(ctx)
		if err != nil {
			return "", fmt.Errorf("list DeviceClasses: %w", err)
		}
		known.byName, known.listed = byName, time.Now()
	}
	if class := known.byName[resource]; class != "" {
		return "DeviceClass " + class + " (spec.extendedResourceName)", nil
	}
	return "", nil
}

// listClasses asks the API server's cache.
func (c *Client) listClasses(ctx context.Context) (map[string]string, error) {
	body, err := c.core.RESTClient().Get().AbsPath("/apis/resource.k8s.io/v1/deviceclasses").
		Param("resourceVersion", "0").SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	var list resourcev1.DeviceClassList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for i := range list.Items {
		// Nodes of heddle's own classes serve no devices of the resource; see [config.ModeClaims].
		own := strings.HasSuffix(list.Items[i].Name, claims.ClassSuffix)
		if name := list.Items[i].Spec.ExtendedResourceName; name != nil && !own {
			byName[*name] = list.Items[i].Name
		}
	}
	return byName, nil
}
