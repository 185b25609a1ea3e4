package nodesync

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// eventMessage is the API's limit on an Event's message, in bytes.
const eventMessage = 1024

// Warn records a Warning Event on the Node, where `kubectl describe node`
// shows it. Callers send one when something became wrong, not on every scan.
func (s *Syncer) Warn(ctx context.Context, reason, message string) error {
	now := metav1.NewTime(time.Now())
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: s.node + ".", Namespace: metav1.NamespaceDefault},
		// kubectl finds a Node's Events by its name used as UID, as the kubelet does.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: s.node, UID: types.UID(s.node)},
		Reason:         reason,
		Message:        message[:min(len(message), eventMessage)],
		Type:           corev1.EventTypeWarning,
		Source:         corev1.EventSource{Component: wellknown.FieldManager, Host: s.node},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	err := s.client.Post().Namespace(metav1.NamespaceDefault).Resource("events").Body(event).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("record event %s on node %s: %w", reason, s.node, err)
	}
	return nil
}
