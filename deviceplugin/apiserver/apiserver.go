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
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// component names the device plugin in Events and managedFields.
const component = "heddle-device-plugin"

// ErrOffline is the answer of a nil Client to what has no other.
var ErrOffline = errors.New("no API server")

// Client is a client for one Node. Its methods may be called at once. All of
// them work on a nil Client.
type Client struct {
	rest rest.Interface
	node string
	log  *slog.Logger
	// nodeWatch and podWatch watch the Node and its pods.
	nodeWatch *nodesync.Watch
	podWatch  *podWatch
	// hami receives when annotations of HAMi's protocol changed on the Node.
	hami    <-chan struct{}
	events  *events
	classes deviceClasses
}

// New returns a client for one Node; Run keeps it current.
func New(client rest.Interface, node string, log *slog.Logger) *Client {
	watch := nodesync.NewWatch(client, node, wellknown.HAMiLock, wellknown.HAMiGPUs)
	return &Client{
		rest: client, node: node, log: log,
		nodeWatch: watch, hami: watch.Followed(),
		podWatch: newPodWatch(), events: newEvents(),
	}
}

// Run watches the Node and its pods and sends Events until ctx ends. It returns
// when all of that has ended.
func (c *Client) Run(ctx context.Context) error {
	if c == nil {
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.sendEvents(ctx) })
	wg.Go(func() { c.watchPods(ctx) })
	return c.nodeWatch.Run(ctx)
}

// Online reports whether the client has an API server.
func (c *Client) Online() bool { return c != nil }

// Labels returns the Node's; nil while it is not known.
func (c *Client) Labels() map[string]string {
	switch n := c.watched(); {
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
	n := c.watched()
	if n == nil {
		return "", false
	}
	return n.Annotations[key], true
}

func (c *Client) watched() *corev1.Node {
	if c == nil {
		return nil
	}
	return c.nodeWatch.Node()
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
	return c.nodeWatch.Node(), c.hami
}

// ReadNode asks for the Node.
func (c *Client) ReadNode(ctx context.Context) (*corev1.Node, error) {
	if c == nil {
		return nil, ErrOffline
	}
	node := &corev1.Node{}
	if err := c.rest.Get().Resource("nodes").Name(c.node).Do(ctx).Into(node); err != nil {
		return nil, fmt.Errorf("read node %s: %w", c.node, err)
	}
	return node, nil
}

// ReadPod asks for a pod of any node.
func (c *Client) ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if c == nil {
		return nil, ErrOffline
	}
	pod := &corev1.Pod{}
	if err := c.rest.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(pod); err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// metadata is the metadata of a merge patch.
type metadata struct {
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	UID             types.UID          `json:"uid,omitempty"`
	Annotations     map[string]*string `json:"annotations"`
}

// patch sends a patch, and decodes the object that the API server answers.
func patch(ctx context.Context, request *rest.Request, body any, into runtime.Object) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return request.VersionedParams(&metav1.PatchOptions{FieldManager: component}, metav1.ParameterCodec).
		Body(text).Do(ctx).Into(into)
}

// AnnotateNode merges annotations into the Node; nil takes one away. A version
// that is not "" must be the Node's. What was written is known when it returns.
func (c *Client) AnnotateNode(ctx context.Context, version string, annotations map[string]*string) error {
	if c == nil {
		return ErrOffline
	}
	node := &corev1.Node{}
	body := map[string]metadata{"metadata": {ResourceVersion: version, Annotations: annotations}}
	if err := patch(ctx, c.rest.Patch(types.MergePatchType).Resource("nodes").Name(c.node), body, node); err != nil {
		return fmt.Errorf("annotate node %s: %w", c.node, err)
	}
	node.Status = corev1.NodeStatus{}
	c.nodeWatch.Keep(node)
	return nil
}

// ShowAnnotations writes those annotations that the watched Node does not have yet; an
// empty value removes one. While the Node is not known it writes nothing: Changed
// receives once it is.
func (c *Client) ShowAnnotations(ctx context.Context, want map[string]string) error {
	n := c.watched()
	if n == nil {
		return nil
	}
	changed := map[string]*string{}
	for key, value := range want {
		old, has := n.Annotations[key]
		switch {
		case value == "" && has:
			changed[key] = nil
		case value != old:
			changed[key] = &value
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return c.AnnotateNode(ctx, "", changed)
}

// Tainted reports whether the Node has a taint of this key and effect; known is false
// while the Node is not.
func (c *Client) Tainted(key string, effect corev1.TaintEffect) (tainted, known bool) {
	n := c.watched()
	if n == nil {
		return false, false
	}
	return taintAt(n.Spec.Taints, key, effect) >= 0, true
}

func taintAt(taints []corev1.Taint, key string, effect corev1.TaintEffect) int {
	return slices.IndexFunc(taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect })
}

// SetTaint adds a taint to the Node, or takes it away. Taints are one list: it is a
// conflict if another client writes the Node meanwhile.
func (c *Client) SetTaint(ctx context.Context, key string, effect corev1.TaintEffect, on bool) error {
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
	body := map[string]any{
		"metadata": metadata{ResourceVersion: node.ResourceVersion}, "spec": map[string]any{"taints": taints},
	}
	written := &corev1.Node{}
	if err := patch(ctx, c.rest.Patch(types.MergePatchType).Resource("nodes").Name(c.node), body, written); err != nil {
		return fmt.Errorf("taint node %s: %w", c.node, err)
	}
	written.Status = corev1.NodeStatus{}
	c.nodeWatch.Keep(written)
	return nil
}

// AnnotatePod merges annotations into a pod; nil takes one away. The UID makes
// it a conflict if another pod has the name.
func (c *Client) AnnotatePod(
	ctx context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string,
) error {
	_, err := c.patchPod(ctx, pod, uid, annotations)
	return err
}

func (c *Client) patchPod(
	ctx context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string,
) (*corev1.Pod, error) {
	if c == nil {
		return nil, ErrOffline
	}
	written := &corev1.Pod{}
	request := c.rest.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name)
	body := map[string]metadata{"metadata": {UID: uid, Annotations: annotations}}
	if err := patch(ctx, request, body, written); err != nil {
		return nil, fmt.Errorf("annotate pod %s: %w", pod, err)
	}
	return written, nil
}

// ShowPodAnnotation writes an annotation of a watched pod; an empty value removes it. What
// was written is watched when it returns.
func (c *Client) ShowPodAnnotation(ctx context.Context, p *corev1.Pod, key, value string) error {
	text := &value
	if value == "" {
		text = nil
	}
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	written, err := c.patchPod(ctx, name, p.UID, map[string]*string{key: text})
	if err == nil {
		err = c.podWatch.Update(written)
	}
	return err
}

// Evict ends a pod by the Eviction API, which honors PodDisruptionBudgets. The
// UID makes it a conflict if another pod has the name.
func (c *Client) Evict(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
	if c == nil {
		return ErrOffline
	}
	// The fields of policy/v1 Eviction that matter: the typed API would cost
	// memory.
	body, err := json.Marshal(map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata":      map[string]string{"namespace": pod.Namespace, "name": pod.Name},
		"deleteOptions": map[string]any{"preconditions": map[string]types.UID{"uid": uid}},
	})
	if err != nil {
		return err
	}
	err = c.rest.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("evict pod %s: %w", pod, err)
	}
	return nil
}

// SetCondition patches one condition of the Node alone, if the Node has another:
// the list is keyed by type in a strategic merge, so that the kubelet's own stay
// as they are.
func (c *Client) SetCondition(ctx context.Context, want health.Condition) error {
	if c == nil {
		return nil
	}
	node, err := c.ReadNode(ctx)
	if err != nil {
		return err
	}
	now := metav1.NewTime(time.Now())
	condition := corev1.NodeCondition{
		Type: corev1.NodeConditionType(want.Type), Status: corev1.ConditionFalse, Reason: want.Reason, Message: want.Message,
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if want.True {
		condition.Status = corev1.ConditionTrue
	}
	all := node.Status.Conditions
	at := slices.IndexFunc(all, func(old corev1.NodeCondition) bool { return old.Type == condition.Type })
	switch {
	case at < 0 && want.Optional && !want.True:
		return nil
	case at < 0 || all[at].Status != condition.Status:
	case all[at].Reason == condition.Reason && all[at].Message == condition.Message:
		return nil
	default:
		condition.LastTransitionTime = all[at].LastTransitionTime
	}
	request := c.rest.Patch(types.StrategicMergePatchType).Resource("nodes").Name(c.node).SubResource("status")
	body := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}}
	if err := patch(ctx, request, body, &corev1.Node{}); err != nil {
		return fmt.Errorf("set condition of node %s: %w", c.node, err)
	}
	return nil
}
