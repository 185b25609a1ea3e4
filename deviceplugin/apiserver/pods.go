package apiserver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// pods are the pods of one node, in the store of a client-go informer.
type pods struct {
	store    cache.Store
	informer cache.Controller

	mu      sync.Mutex
	changed chan struct{} // guarded by mu
}

func newPods(client rest.Interface, node string) *pods {
	p := &pods{changed: make(chan struct{})}
	p.store, p.informer = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(
			client, "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", node)),
		ObjectType: &corev1.Pod{}, Transform: lean,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { p.notify() },
			UpdateFunc: func(any, any) { p.notify() },
			DeleteFunc: func(any) { p.notify() },
		},
	})
	return p
}

// run watches until ctx ends.
func (p *pods) run(ctx context.Context) {
	var synced sync.WaitGroup
	defer synced.Wait()
	synced.Go(func() {
		cache.WaitForCacheSync(ctx.Done(), p.informer.HasSynced)
		p.notify() // Also of a node without pods.
	})
	p.informer.RunWithContext(ctx)
}

// notify wakes what waits for a change.
func (p *pods) notify() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// lean takes out of a pod the large parts that the device plugin does not read: a node has hundreds.
func lean(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	p.ManagedFields, p.Labels, p.Status.Conditions = nil, nil, nil
	p.Spec.Volumes, p.Spec.Affinity, p.Spec.Tolerations, p.Spec.TopologySpreadConstraints = nil, nil, nil, nil
	for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range containers {
			c := &containers[i]
			c.Command, c.Args, c.VolumeMounts, c.Ports = nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
	return p, nil
}

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
	c.pods.mu.Lock()
	defer c.pods.mu.Unlock()
	for _, obj := range c.pods.store.List() {
		if p, ok := obj.(*corev1.Pod); ok {
			all = append(all, p)
		}
	}
	return all, c.pods.changed, c.pods.informer.HasSynced()
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
// may mean an older pod there, so Pod asks the API server, which cannot look up a UID alone.
func (c *Client) Pod(ctx context.Context, pod kubelet.Pod) (*corev1.Pod, error) {
	if c == nil {
		return nil, ErrOffline
	}
	if pod.UID != "" {
		if got, _ := c.Watched(kubelet.Pod{UID: pod.UID}); got != nil {
			return got, nil
		}
	}
	if pod.Name == "" {
		return nil, fmt.Errorf("%s is not among the pods of node %s", pod, c.node)
	}
	got, err := c.ReadPod(ctx, pod.Namespace, pod.Name)
	if err == nil && pod.UID != "" && !HasUID(got, pod.UID) {
		return nil, fmt.Errorf("read pod %s: another pod has its name", pod)
	}
	return got, err
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

// Five pods are evicted at once, and then one every six seconds: a mistake must
// not become a storm of new pods.
const (
	evictEvery = 6 * time.Second
	evictBurst = 5
)

// EvictFor evicts a pod with an Event, as far as the rate and its budget allow, and reports whether it did. A
// caller that still wants the pod evicted calls again.
func (c *Client) EvictFor(ctx context.Context, pod kubelet.Pod, event, message string) bool {
	if c == nil || !c.evictions.Allow() {
		return false
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	err := c.Evict(ctx, key, types.UID(pod.UID))
	switch {
	case err == nil:
		c.WarnPod(pod, event, message)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // It is gone.
	case apierrors.IsTooManyRequests(err):
		c.log.DebugContext(ctx, "eviction waits for a disruption budget", "pod", pod.String(), "err", err)
	default:
		c.log.WarnContext(ctx, "eviction failed", "pod", pod.String(), "event", event, "err", err)
	}
	return err == nil
}

// Ref names a pod.
func Ref(p *corev1.Pod) kubelet.Pod {
	return kubelet.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}
}
