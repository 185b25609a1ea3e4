package informers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Use is the state of a node's GPUs, and who has them.
type Use struct {
	// Health is the condition HeddleReady, whose message names the devices that no pod can get, up to eight for a cause;
	// nil without heddle-device-plugin.
	Health *corev1.NodeCondition `json:"health,omitempty"`
	// Cordoned are the UUIDs of cordoned GPUs.
	Cordoned []string `json:"cordoned,omitempty"`
	// Shared are the shared GPUs with their health and their use.
	Shared []allocation.GPU `json:"shared,omitempty"`
	// Pods are ordered by namespace and name.
	Pods []Consumer `json:"pods"`
}

// Consumer is a pod that holds GPUs or shares.
type Consumer struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Phase     corev1.PodPhase `json:"phase"`
	Created   metav1.Time     `json:"created,omitzero"`
	// GPUs is the number of whole GPUs.
	GPUs int32 `json:"gpus,omitempty"`
	// Shares is keyed by container, as its node bound them.
	Shares map[string]allocation.Sharing `json:"shares,omitempty"`
}

// Consumers asks the API server about the pods that hold GPUs, on request: topo-master does not keep them.
type Consumers struct {
	core rest.Interface
	pods podReader
}

// NewConsumers asks about pods that request whole GPUs by these names, and about shares. The rate of the client limits
// what clients of topo-master can ask: it should have no other use.
func NewConsumers(core rest.Interface, gpus []corev1.ResourceName) *Consumers {
	return &Consumers{core: core, pods: podReader{resources: gpus}}
}

// Of returns the use of a node's GPUs.
func (c *Consumers) Of(ctx context.Context, node string) (*Use, error) {
	// The API server answers both from memory.
	list := func(resource, field string, into runtime.Object) error {
		request := c.core.Get().Resource(resource).Param("fieldSelector", field+"="+node).Param("resourceVersion", "0")
		if err := request.Do(ctx).Into(into); err != nil {
			return fmt.Errorf("list %s of node %s: %w", resource, node, err)
		}
		return nil
	}
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := list("nodes", "metadata.name", &nodes); err != nil {
		return nil, err
	}
	if err := list("pods", "spec.nodeName", &pods); err != nil {
		return nil, err
	}
	use := &Use{Pods: []Consumer{}}
	for i := range nodes.Items {
		use.read(&nodes.Items[i])
	}
	for i := range pods.Items {
		if one, holds := c.consumer(&pods.Items[i]); holds {
			use.Pods = append(use.Pods, one)
		}
	}
	slices.SortFunc(use.Pods, func(a, b Consumer) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return use, nil
}

// read reads the Node. An invalid annotation counts as none: its writer reports it.
func (u *Use) read(node *corev1.Node) {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == wellknown.ConditionDevices {
			u.Health = &node.Status.Conditions[i]
		}
	}
	u.Cordoned, _ = wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
	u.Shared = sharedGPUs(node)
}

func sharedGPUs(node *corev1.Node) []allocation.GPU {
	all, err := allocation.ParseNodeGPUs(node.Annotations[wellknown.SharedGPUs])
	if err != nil {
		return nil
	}
	return all.GPUs
}

// consumer reads a pod; false if it holds no GPU.
func (c *Consumers) consumer(pod *corev1.Pod) (Consumer, bool) {
	out := Consumer{
		Namespace: pod.Namespace, Name: pod.Name, Phase: pod.Status.Phase, Created: pod.CreationTimestamp,
		GPUs: c.pods.read(pod).GPUs,
	}
	// Only the node writes this annotation: the admission policy heddle-shares rejects others.
	bound, err := allocation.ParseBound(pod.Annotations[wellknown.SGPUBound])
	if err == nil && bound.Node == pod.Spec.NodeName && !ended(pod) {
		out.Shares = bound.Containers
	}
	return out, out.GPUs > 0 || len(out.Shares) > 0
}

// Nodes returns the names of the Nodes that a selector matches and that pods of a namespace hold GPUs of, in any order;
// an empty selector or namespace matches all.
func (c *Consumers) Nodes(ctx context.Context, selector labels.Selector, namespace string) ([]string, error) {
	found := map[string]bool{}
	if namespace != "" {
		err := c.each(ctx, "pods", namespace, labels.Everything(), func(o runtime.Object) error {
			if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				if _, holds := c.consumer(pod); holds {
					found[pod.Spec.NodeName] = true
				}
			}
			return nil
		})
		if err != nil || selector.Empty() {
			return slices.AppendSeq([]string{}, maps.Keys(found)), err
		}
	}
	names := []string{}
	err := c.each(ctx, "nodes", "", selector, func(o runtime.Object) error {
		if node, ok := o.(*corev1.Node); ok && (namespace == "" || found[node.Name]) {
			names = append(names, node.Name)
		}
		return nil
	})
	return names, err
}

// each lists objects page by page: memory never holds all of them.
func (c *Consumers) each(
	ctx context.Context, resource, namespace string, selector labels.Selector, do func(runtime.Object) error,
) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		request := c.core.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource)
		return request.Param("labelSelector", selector.String()).Param("limit", strconv.FormatInt(o.Limit, 10)).
			Param("continue", o.Continue).Do(ctx).Get()
	})
	if err := pages.EachListItem(ctx, metav1.ListOptions{}, do); err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	return nil
}
