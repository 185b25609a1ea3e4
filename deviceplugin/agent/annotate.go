package agent

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReadNode asks for our own Node.
func (k *Kube) ReadNode(ctx context.Context) (*corev1.Node, error) { return k.read(ctx) }

// ReadPod asks for a pod of any node.
func (k *Kube) ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := k.client.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(pod); err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// AnnotateNode merges annotations into our own Node; nil takes one away. A
// version that is not "" must be the Node's. What was written is known when it
// returns.
func (k *Kube) AnnotateNode(ctx context.Context, version string, annotations map[string]*string) error {
	body, err := json.Marshal(merge{Metadata: meta{ResourceVersion: version, Annotations: annotations}})
	if err != nil {
		return err
	}
	node := &corev1.Node{}
	err = k.client.Patch(types.MergePatchType).Resource("nodes").Name(k.node).
		VersionedParams(&metav1.PatchOptions{FieldManager: component}, metav1.ParameterCodec).
		Body(body).Do(ctx).Into(node)
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", k.node, err)
	}
	node.Status = corev1.NodeStatus{}
	k.watch.Keep(node)
	return nil
}

// AnnotatePod merges annotations into a pod; nil takes one away. The UID makes
// it a conflict if another pod has the name by now.
func (k *Kube) AnnotatePod(
	ctx context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string,
) error {
	body, err := json.Marshal(merge{Metadata: meta{UID: uid, Annotations: annotations}})
	if err != nil {
		return err
	}
	err = k.client.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		VersionedParams(&metav1.PatchOptions{FieldManager: component}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("annotate pod %s: %w", pod, err)
	}
	return nil
}

// merge is a merge patch of annotations.
type merge struct {
	Metadata meta `json:"metadata"`
}

type meta struct {
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	UID             types.UID          `json:"uid,omitempty"`
	Annotations     map[string]*string `json:"annotations"`
}
