package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// component names us in Events and managedFields.
const component = "heddle-device-plugin"

// Kube is the API server, as far as the device plugin needs it. Nothing that a
// pod waits for waits for it longer than its context says.
type Kube struct {
	client rest.Interface
	node   string
	log    *slog.Logger
	watch  *nodesync.Watch
	// hami receives when annotations of HAMi's protocol changed on the Node.
	hami   <-chan struct{}
	pods   *pods
	events *events
	claims *claims
}

// NewKube returns a Kube for one Node; Run keeps it current.
func NewKube(client rest.Interface, node string, log *slog.Logger) *Kube {
	watch := nodesync.NewWatch(client, node)
	return &Kube{
		client: client, node: node, log: log, watch: watch, hami: watch.Follow(wellknown.HAMiLock, wellknown.HAMiCards),
		pods: newPods(client, node), events: newEvents(client, node, log), claims: &claims{client: client},
	}
}

// Run watches the Node and its pods and sends Events until ctx ends. It returns
// when all of that has ended.
func (k *Kube) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.events.run(ctx) })
	wg.Go(func() { k.pods.run(ctx) })
	return k.watch.Run(ctx)
}

// Labels are the Node's; nil while it is not known.
func (k *Kube) Labels() map[string]string {
	n := k.watch.Node()
	switch {
	case n == nil:
		return nil
	case n.Labels == nil:
		return map[string]string{}
	}
	return n.Labels
}

// Changed receives when Labels may differ.
func (k *Kube) Changed() <-chan struct{} { return k.watch.Changed() }

// Annotate writes those annotations for schedulers of which the Node has others;
// empty removes one.
func (k *Kube) Annotate(ctx context.Context, annotations map[string]string) error {
	node, err := k.read(ctx)
	if err != nil {
		return err
	}
	changed := map[string]any{}
	for key, value := range annotations {
		switch {
		case node.Annotations[key] == value:
		case value == "":
			changed[key] = nil // null removes it
		default:
			changed[key] = value
		}
	}
	if len(changed) == 0 {
		return nil
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": changed}}
	if err := k.patch(ctx, patch, ""); err != nil {
		return fmt.Errorf("annotate node %s: %w", k.node, err)
	}
	return nil
}

// Cordoned implements [Cordons].
func (k *Kube) Cordoned() (text string, known bool) {
	n := k.watch.Node()
	if n == nil {
		return "", false
	}
	return n.Annotations[wellknown.CordonedGPUs], true
}

// SetCondition patches one condition alone, if the Node has another: the list
// is keyed by type in a strategic merge, so that the kubelet's own stay as they
// are.
func (k *Kube) SetCondition(ctx context.Context, c health.Condition) error {
	node, err := k.read(ctx)
	if err != nil {
		return err
	}
	status := corev1.ConditionFalse
	if c.True {
		status = corev1.ConditionTrue
	}
	now := metav1.NewTime(time.Now())
	since := now
	there := false
	for _, old := range node.Status.Conditions {
		there = there || string(old.Type) == c.Type
		if string(old.Type) != c.Type || old.Status != status {
			continue
		}
		if old.Reason == c.Reason && old.Message == c.Message {
			return nil
		}
		since = old.LastTransitionTime
	}
	if c.Optional && !c.True && !there {
		return nil
	}
	patch := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeConditionType(c.Type), Status: status, Reason: c.Reason, Message: c.Message,
		LastHeartbeatTime: now, LastTransitionTime: since,
	}}}}
	if err := k.patch(ctx, patch, "status"); err != nil {
		return fmt.Errorf("set condition of node %s: %w", k.node, err)
	}
	return nil
}

func (k *Kube) read(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := k.client.Get().Resource("nodes").Name(k.node).Do(ctx).Into(node); err != nil {
		return nil, fmt.Errorf("read node %s: %w", k.node, err)
	}
	return node, nil
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
