package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

const (
	// maxEventMessage is the API's limit, in bytes.
	maxEventMessage = 1024
	// eventBurst Events on one object are sent at once, and as many different ones in ten minutes: a
	// node has many devices. Equal Events become one with a count.
	eventBurst = 100
)

// newRecorder returns a recorder: none of those who report an Event waits for the API server.
func newRecorder(core typed.EventsGetter, node string) (record.EventRecorder, record.EventBroadcaster) {
	b := record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{
		BurstSize: eventBurst, MaxEvents: eventBurst,
	})
	b.StartRecordingToSink(&typed.EventSinkImpl{Interface: core.Events("")})
	return b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: node}), b
}

// WarnPod records an Event on a pod. It returns at once.
func (c *Client) WarnPod(pod kubelet.Pod, reason, message string) {
	if c == nil {
		return
	}
	message = wellknown.ClipTo(message, maxEventMessage) // It may repeat what the pod's owner wrote.
	c.log.Warn("event on a pod", "pod", pod.String(), "reason", reason, "message", message)
	if pod.Name != "" {
		c.events.Event(&corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
		}, corev1.EventTypeWarning, reason, message)
	}
}

// Record records an Event on the Node. It returns at once.
func (c *Client) Record(n health.NodeEvent) {
	if c == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	// kubectl finds a Node's Events by its name used as UID, as the kubelet does.
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: c.node, UID: types.UID(c.node)}
	c.events.Event(about, kind, n.Reason, wellknown.ClipTo(n.Message, maxEventMessage))
}
