package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/names"
	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// component names us in Events and managedFields.
const component = "heddle-device-plugin"

// mirrorAnnotation is on the API's copy of a static pod: the kubelet's UID of
// it (kubernetes.io/config.mirror).
const mirrorAnnotation = "kubernetes.io/config.mirror"

// Kube is the API server, as far as the device plugin needs it. Nothing that a
// pod waits for waits for it longer than its context says.
type Kube struct {
	client rest.Interface
	node   string
	watch  *nodesync.Watch
	log    *slog.Logger
	events chan *corev1.Event
}

// NewKube returns a Kube for one Node; Run keeps it current.
func NewKube(client rest.Interface, node string, log *slog.Logger) *Kube {
	const waiting = 128 // Events beyond are in the log only.
	return &Kube{
		client: client, node: node, log: log,
		watch: nodesync.NewWatch(client, node), events: make(chan *corev1.Event, waiting),
	}
}

// Run watches the Node and sends Events until ctx ends.
func (k *Kube) Run(ctx context.Context) error {
	go k.send(ctx)
	return k.watch.Run(ctx)
}

// Labels are the Node's; nil while it is not known.
func (k *Kube) Labels() map[string]string {
	if n := k.watch.Node(); n != nil {
		return n.Labels
	}
	return nil
}

// Publish writes the condition and the annotation if the Node has others.
func (k *Kube) Publish(ctx context.Context, c health.Condition, topology string) error {
	node := &corev1.Node{}
	if err := k.client.Get().Resource("nodes").Name(k.node).Do(ctx).Into(node); err != nil {
		return fmt.Errorf("read node %s: %w", k.node, err)
	}
	return errors.Join(k.annotate(ctx, node, topology), k.condition(ctx, node, c))
}

func (k *Kube) annotate(ctx context.Context, node *corev1.Node, topology string) error {
	if node.Annotations[names.GPUTopology] == topology {
		return nil
	}
	var value any // null removes it
	if topology != "" {
		value = topology
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{names.GPUTopology: value}}}
	if err := k.patch(ctx, patch, ""); err != nil {
		return fmt.Errorf("annotate node %s: %w", k.node, err)
	}
	return nil
}

// condition patches our condition alone: the list is keyed by type in a
// strategic merge, so that the kubelet's own stay as they are.
func (k *Kube) condition(ctx context.Context, node *corev1.Node, c health.Condition) error {
	status := corev1.ConditionFalse
	if c.Ready {
		status = corev1.ConditionTrue
	}
	now := metav1.NewTime(time.Now())
	since := now
	for _, old := range node.Status.Conditions {
		if old.Type != health.ConditionType {
			continue
		}
		if old.Status == status && old.Reason == c.Reason && old.Message == c.Message {
			return nil
		}
		if old.Status == status {
			since = old.LastTransitionTime
		}
	}
	patch := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: health.ConditionType, Status: status, Reason: c.Reason, Message: c.Message,
		LastHeartbeatTime: now, LastTransitionTime: since,
	}}}}
	if err := k.patch(ctx, patch, "status"); err != nil {
		return fmt.Errorf("set condition of node %s: %w", k.node, err)
	}
	return nil
}

func (k *Kube) patch(ctx context.Context, patch map[string]any, subresource string) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	request := k.client.Patch(types.StrategicMergePatchType).Resource("nodes").Name(k.node)
	if subresource != "" {
		request = request.SubResource(subresource)
	}
	return request.VersionedParams(&metav1.PatchOptions{FieldManager: component}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
}

// Pod reads a pod. PodResources names it; the checkpoint alone may know no
// more than its UID, which the API cannot be asked for: then it is looked for
// among the node's pods.
func (k *Kube) Pod(ctx context.Context, pod binder.Pod) (*corev1.Pod, error) {
	if pod.Name != "" {
		got := &corev1.Pod{}
		err := k.client.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Do(ctx).Into(got)
		if err != nil {
			return nil, fmt.Errorf("read pod %s: %w", pod, err)
		}
		if pod.UID != "" && !is(got, pod.UID) {
			return nil, fmt.Errorf("read pod %s: it is another one by now", pod)
		}
		return got, nil
	}
	list := &corev1.PodList{}
	err := k.client.Get().Resource("pods").
		VersionedParams(&metav1.ListOptions{FieldSelector: "spec.nodeName=" + k.node}, metav1.ParameterCodec).
		Do(ctx).Into(list)
	if err != nil {
		return nil, fmt.Errorf("list pods of node %s: %w", k.node, err)
	}
	for i := range list.Items {
		if is(&list.Items[i], pod.UID) {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("%s is not among the pods of node %s", pod, k.node)
}

func is(pod *corev1.Pod, uid string) bool {
	return string(pod.UID) == uid || pod.Annotations[mirrorAnnotation] == uid
}

// Warn records an Event on a pod, when there is time.
func (k *Kube) Warn(pod binder.Pod, reason, message string) {
	k.log.Warn("a pod should know", "pod", pod.String(), "reason", reason, "message", message)
	if pod.Name == "" {
		return
	}
	k.queue(corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
	}, corev1.EventTypeWarning, reason, message)
}

// Record records an Event on the Node.
func (k *Kube) Record(_ context.Context, n health.Notice) error {
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	k.queue(corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: k.node, UID: types.UID(k.node)},
		kind, n.Reason, n.Message)
	return nil
}

func (k *Kube) queue(about corev1.ObjectReference, kind, reason, message string) {
	const maxMessage = 1024 // The API's limit.
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.NewTime(time.Now())
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: about.Name + ".", Namespace: namespace},
		InvolvedObject: about, Type: kind, Reason: reason, Message: message[:min(len(message), maxMessage)],
		Source:         corev1.EventSource{Component: component, Host: k.node},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	select {
	case k.events <- event:
	default:
		k.log.Warn("too many Events are waiting; one is left out", "reason", reason, "message", message)
	}
}

func (k *Kube) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-k.events:
			err := k.client.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
			if err != nil && ctx.Err() == nil {
				k.log.Warn("event not recorded", "reason", e.Reason, "err", err)
			}
		}
	}
}
