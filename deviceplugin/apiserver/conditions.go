package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/deviceplugin/health"
)

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
	condition := corev1.NodeCondition{
		Type: corev1.NodeConditionType(want.Type), Status: corev1.ConditionFalse, Reason: want.Reason, Message: want.Message,
	}
	if want.True {
		condition.Status = corev1.ConditionTrue
	}
	condition.LastHeartbeatTime = metav1.NewTime(time.Now())
	condition.LastTransitionTime = condition.LastHeartbeatTime
	present := false
	for _, old := range node.Status.Conditions {
		present = present || old.Type == condition.Type
		if old.Type != condition.Type || old.Status != condition.Status {
			continue
		}
		if old.Reason == condition.Reason && old.Message == condition.Message {
			return nil
		}
		condition.LastTransitionTime = old.LastTransitionTime
	}
	if want.Optional && !want.True && !present {
		return nil
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return err
	}
	err = c.rest.Patch(types.StrategicMergePatchType).Resource("nodes").Name(c.node).SubResource("status").
		VersionedParams(&metav1.PatchOptions{FieldManager: component}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("set condition of node %s: %w", c.node, err)
	}
	return nil
}

// Annotate writes those annotations of which the Node has others; empty removes
// one.
func (c *Client) Annotate(ctx context.Context, annotations map[string]string) error {
	node, err := c.ReadNode(ctx)
	if err != nil {
		return err
	}
	changed := map[string]*string{}
	for key, value := range annotations {
		switch {
		case node.Annotations[key] == value:
		case value == "":
			changed[key] = nil // null removes it
		default:
			changed[key] = &value
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return c.AnnotateNode(ctx, "", changed)
}
