package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// podWatch keeps the pods of one node. It is the store of a client-go reflector,
// which relists and backs off as the field expects.
type podWatch struct {
	mu sync.Mutex // guards all below
	// all are replaced and never modified.
	all     map[types.UID]*corev1.Pod
	known   bool
	changed chan struct{}
}

func newPodWatch() *podWatch {
	return &podWatch{all: map[types.UID]*corev1.Pod{}, changed: make(chan struct{})}
}

// onNode selects the node's pods.
func (c *Client) onNode() fields.Selector {
	return fields.OneTermEqualSelector("spec.nodeName", c.node)
}

func (c *Client) watchPods(ctx context.Context) {
	lw := cache.NewListWatchFromClient(c.rest, "pods", metav1.NamespaceAll, c.onNode())
	cache.NewReflectorWithOptions(lw, &corev1.Pod{}, c.podWatch, cache.ReflectorOptions{Name: "pods"}).RunWithContext(ctx)
}

// change changes the pods and wakes what waits for that.
func (p *podWatch) change(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Lean keeps what the device plugin reads of a pod: a node has hundreds.
func Lean(p *corev1.Pod) *corev1.Pod {
	lean := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Annotations: p.Annotations,
		ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
		CreationTimestamp: p.CreationTimestamp, OwnerReferences: p.OwnerReferences,
	}}
	lean.Status.Phase, lean.Status.StartTime = p.Status.Phase, p.Status.StartTime
	lean.Status.ContainerStatuses = leanStatuses(p.Status.ContainerStatuses)
	lean.Status.InitContainerStatuses = leanStatuses(p.Status.InitContainerStatuses)
	lean.Spec.SecurityContext, lean.Spec.Priority = p.Spec.SecurityContext, p.Spec.Priority
	lean.Spec.NodeName, lean.Spec.SchedulerName = p.Spec.NodeName, p.Spec.SchedulerName
	lean.Spec.Containers = leanContainers(p.Spec.Containers)
	lean.Spec.InitContainers = leanContainers(p.Spec.InitContainers)
	return lean
}

func leanContainers(list []corev1.Container) []corev1.Container {
	lean := make([]corev1.Container, 0, len(list))
	for i := range list {
		c := &list[i]
		lean = append(lean, corev1.Container{
			Name: c.Name, Env: c.Env, EnvFrom: c.EnvFrom, Resources: c.Resources, RestartPolicy: c.RestartPolicy,
			SecurityContext: c.SecurityContext,
		})
	}
	return lean
}

func leanStatuses(list []corev1.ContainerStatus) []corev1.ContainerStatus {
	lean := make([]corev1.ContainerStatus, 0, len(list))
	for i := range list {
		s := &list[i]
		lean = append(lean, corev1.ContainerStatus{
			Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState, RestartCount: s.RestartCount,
			ContainerID: s.ContainerID,
		})
	}
	return lean
}

// Add is called by the reflector.
func (p *podWatch) Add(obj any) error { return p.Update(obj) }

// Update is called by the reflector, and with what a write returned. It ignores a version
// older than the known one.
func (p *podWatch) Update(obj any) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		p.change(func() {
			if known := p.all[pod.UID]; known != nil {
				order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, known.ResourceVersion)
				if err == nil && order < 0 {
					return
				}
			}
			p.all[pod.UID] = Lean(pod)
		})
	}
	return nil
}

// Delete is called by the reflector.
func (p *podWatch) Delete(obj any) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		p.change(func() { delete(p.all, pod.UID) })
	}
	return nil
}

// Replace is called by the reflector after a list.
func (p *podWatch) Replace(list []any, _ string) error {
	all := make(map[types.UID]*corev1.Pod, len(list))
	for _, obj := range list {
		if pod, ok := obj.(*corev1.Pod); ok {
			all[pod.UID] = Lean(pod)
		}
	}
	p.change(func() { p.all, p.known = all, true })
	return nil
}

// Resync is called by the reflector and has nothing to do here.
func (p *podWatch) Resync() error { return nil }

// HasUID reports whether a pod has the kubelet's UID: its own, or, of a static
// pod's mirror, the one in its annotation.
func HasUID(pod *corev1.Pod, uid string) bool {
	return string(pod.UID) == uid || pod.Annotations[corev1.MirrorPodAnnotationKey] == uid
}

// Pods returns the watched pods of the node; callers must not modify them. changed is closed when
// they change; known is false until the first list.
func (c *Client) Pods() (all []*corev1.Pod, changed <-chan struct{}, known bool) {
	if c == nil {
		return nil, nil, false
	}
	p := c.podWatch
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.all)), p.changed, p.known
}

// Watched returns a pod of this node without a request; nil if it is not among those
// that are watched. complete is false while not all pods are.
func (c *Client) Watched(ref kubelet.Pod) (pod *corev1.Pod, complete bool) {
	all, _, complete := c.Pods()
	at := slices.IndexFunc(all, func(p *corev1.Pod) bool {
		named := p.Namespace == ref.Namespace && p.Name == ref.Name
		return (ref.UID == "" || HasUID(p, ref.UID)) && (named || ref.Name == "" && ref.UID != "")
	})
	if at < 0 {
		return nil, complete
	}
	return all[at], complete
}

// Pod returns a pod with its owner's specification. A known UID finds a watched pod; a name alone
// may mean an older pod there, so Pod asks the API server. The checkpoint may know only a UID,
// which the API cannot look up: then Pod searches the node's pods.
func (c *Client) Pod(ctx context.Context, pod kubelet.Pod) (*corev1.Pod, error) {
	if c == nil {
		return nil, ErrOffline
	}
	if pod.UID != "" {
		if got, _ := c.Watched(kubelet.Pod{UID: pod.UID}); got != nil {
			return got, nil
		}
	}
	if pod.Name != "" {
		got, err := c.ReadPod(ctx, pod.Namespace, pod.Name)
		if err != nil {
			return nil, err
		}
		if pod.UID != "" && !HasUID(got, pod.UID) {
			return nil, fmt.Errorf("read pod %s: another pod has its name", pod)
		}
		return got, nil
	}
	list := &corev1.PodList{}
	options := &metav1.ListOptions{FieldSelector: c.onNode().String(), ResourceVersion: "0"}
	err := c.rest.Get().Resource("pods").VersionedParams(options, metav1.ParameterCodec).Do(ctx).Into(list)
	if err != nil {
		return nil, fmt.Errorf("list pods of node %s: %w", c.node, err)
	}
	for i := range list.Items {
		if HasUID(&list.Items[i], pod.UID) {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("%s is not among the pods of node %s", pod, c.node)
}

// Await returns the pods of the node that match. Without one it waits:
// the kubelet and the device plugin learn of a pod at about the same time. It
// answers none after timeout, and at once while the pods are not known.
func (c *Client) Await(timeout time.Duration, match func(*corev1.Pod) bool) []*corev1.Pod {
	late := time.After(timeout)
	for {
		pods, changed, known := c.Pods()
		if !known {
			return nil
		}
		if pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !match(p) }); len(pods) > 0 {
			return pods
		}
		select {
		case <-changed:
		case <-late:
			return nil
		}
	}
}
