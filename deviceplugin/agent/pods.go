package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/heddle-dev/heddle/deviceplugin/binder"
)

// pods keeps the pods of one node. It is the store of a client-go reflector,
// which relists and backs off as the field expects.
type pods struct {
	client rest.Interface
	node   string

	mu sync.Mutex // guards all below
	// all are replaced and never modified.
	all     map[types.UID]*corev1.Pod
	known   bool
	changed chan struct{}
}

func newPods(client rest.Interface, node string) *pods {
	return &pods{client: client, node: node, all: map[types.UID]*corev1.Pod{}, changed: make(chan struct{})}
}

func ofNode(node string) fields.Selector { return fields.OneTermEqualSelector("spec.nodeName", node) }

func (p *pods) run(ctx context.Context) {
	lw := cache.NewListWatchFromClient(p.client, "pods", metav1.NamespaceAll, ofNode(p.node))
	cache.NewReflectorWithOptions(lw, &corev1.Pod{}, p, cache.ReflectorOptions{Name: "pods"}).RunWithContext(ctx)
}

// note changes the pods and wakes those who wait for that.
func (p *pods) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// leanPod keeps what the device plugin reads of a pod: a node has hundreds.
func leanPod(p *corev1.Pod) *corev1.Pod {
	lean := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Annotations: p.Annotations,
		DeletionTimestamp: p.DeletionTimestamp, CreationTimestamp: p.CreationTimestamp,
		OwnerReferences: p.OwnerReferences,
	}}
	lean.Status.Phase, lean.Status.StartTime = p.Status.Phase, p.Status.StartTime
	lean.Status.ContainerStatuses = leanStatuses(p.Status.ContainerStatuses)
	lean.Status.InitContainerStatuses = leanStatuses(p.Status.InitContainerStatuses)
	lean.Spec.SecurityContext = p.Spec.SecurityContext
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
func (p *pods) Add(obj any) error { return p.Update(obj) }

// Update is called by the reflector.
func (p *pods) Update(obj any) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		p.note(func() { p.all[pod.UID] = leanPod(pod) })
	}
	return nil
}

// Delete is called by the reflector.
func (p *pods) Delete(obj any) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		p.note(func() { delete(p.all, pod.UID) })
	}
	return nil
}

// Replace is called by the reflector after a list.
func (p *pods) Replace(list []any, _ string) error {
	all := make(map[types.UID]*corev1.Pod, len(list))
	for _, obj := range list {
		if pod, ok := obj.(*corev1.Pod); ok {
			all[pod.UID] = leanPod(pod)
		}
	}
	p.note(func() { p.all, p.known = all, true })
	return nil
}

// Resync is called by the reflector and has nothing to do here.
func (p *pods) Resync() error { return nil }

// list is NodePods.Pods.
func (p *pods) list() (all []*corev1.Pod, changed <-chan struct{}, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all = make([]*corev1.Pod, 0, len(p.all))
	for _, pod := range p.all {
		all = append(all, pod)
	}
	return all, p.changed, p.known
}

// withUID finds a pod by the kubelet's UID; nil if there is none.
func (p *pods) withUID(uid string) *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pod := p.all[types.UID(uid)]; pod != nil {
		return pod
	}
	for _, pod := range p.all {
		if is(pod, uid) {
			return pod
		}
	}
	return nil
}

// is tells whether a pod has the kubelet's UID: its own, or, of a static pod's
// mirror, the one in its annotation.
func is(pod *corev1.Pod, uid string) bool {
	return string(pod.UID) == uid || pod.Annotations[corev1.MirrorPodAnnotationKey] == uid
}

// Pods implements [NodePods].
func (k *Kube) Pods() (all []*corev1.Pod, changed <-chan struct{}, known bool) { return k.pods.list() }

// Pod implements [binder.PodSpecs]. A pod whose UID is known is the one that
// was watched; a name alone may mean an older pod there, and is asked for. The
// checkpoint alone may know no more than a UID, which the API cannot be asked
// for: then the pod is looked for among the node's.
func (k *Kube) Pod(ctx context.Context, pod binder.Pod) (*corev1.Pod, error) {
	if pod.UID != "" {
		if got := k.pods.withUID(pod.UID); got != nil {
			return got, nil
		}
	}
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
	options := &metav1.ListOptions{FieldSelector: ofNode(k.node).String(), ResourceVersion: "0"}
	err := k.client.Get().Resource("pods").VersionedParams(options, metav1.ParameterCodec).Do(ctx).Into(list)
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

// known is a pod of this node, as the API server has shown it; complete is
// false until it has shown all.
func (a *Agent) known(pod binder.Pod) (p *corev1.Pod, complete bool) {
	all, _, complete := a.NodePods.Pods()
	at := slices.IndexFunc(all, func(p *corev1.Pod) bool {
		named := p.Namespace == pod.Namespace && p.Name == pod.Name
		return of(p, pod.UID) && (named || pod.Name == "" && pod.UID != "")
	})
	if at < 0 {
		return nil, complete
	}
	return all[at], complete
}
