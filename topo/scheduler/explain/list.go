package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	// page is the number of objects in one response of the API server.
	page = 500
	// freshFor is the time for which a list answers further questions.
	freshFor = 5 * time.Second
)

// ErrTooLarge is for a cluster with more nodes or pods than the limits of a Lister.
var ErrTooLarge = errors.New("the cluster is too large to be listed for this: ask with the command heddle why")

// Lister answers from lists that the API server returns on demand. Concurrent questions wait for
// each other and share a list, so that memory holds the cluster only once and briefly.
type Lister struct {
	core     rest.Interface
	maxNodes int
	maxPods  int
	clock    clock.PassiveClock
	// listing is held by the question that lists, or uses what was listed.
	listing chan struct{}
	known   *Cluster
	listed  time.Time
}

// NewLister returns a lister of at most that many nodes and pods.
func NewLister(core rest.Interface, maxNodes, maxPods int, c clock.PassiveClock) *Lister {
	return &Lister{core: core, maxNodes: maxNodes, maxPods: maxPods, clock: c, listing: make(chan struct{}, 1)}
}

// Explain answers as [Of] does. groups are the answer of GET /node_group.
func (l *Lister) Explain(ctx context.Context, groups []v1alpha1.Group, namespace, name string) (*Answer, error) {
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another question: %w", ctx.Err())
	case l.listing <- struct{}{}:
	}
	defer func() { <-l.listing }()
	if now := l.clock.Now(); l.known == nil || now.Sub(l.listed) > freshFor {
		l.known = nil // The old list need not live beside the new one.
		known, err := l.list(ctx)
		if err != nil {
			return nil, err
		}
		l.known, l.listed = known, now
	}
	known := *l.known
	known.Groups = groups
	var err error
	if known.PodGroups, err = l.podGroups(ctx, namespace); err != nil {
		return nil, err
	}
	return Of(ctx, &known, namespace, name, l.clock.Now())
}

func (l *Lister) list(ctx context.Context) (*Cluster, error) {
	out := &Cluster{}
	err := pages(ctx, l.core, "nodes", l.maxNodes, func(list *corev1.NodeList) int {
		for i := range list.Items {
			out.Nodes = append(out.Nodes, trimNode(&list.Items[i]))
		}
		return len(out.Nodes)
	})
	if err != nil {
		return nil, err
	}
	err = pages(ctx, l.core, "pods", l.maxPods, func(list *corev1.PodList) int {
		for i := range list.Items {
			out.Pods = append(out.Pods, trimPod(&list.Items[i]))
		}
		return len(out.Pods)
	})
	if err != nil {
		return nil, err
	}
	var budgets policyv1.PodDisruptionBudgetList
	err = l.read(ctx, "/apis/policy/v1/poddisruptionbudgets", &budgets)
	out.Budgets = budgets.Items
	return out, err
}

// pages reads a list of core/v1, page by page. add returns how many objects there are
// now, at most most.
func pages[T any, P interface {
	*T
	runtime.Object
	metav1.ListInterface
}](ctx context.Context, core rest.Interface, resource string, most int, add func(P) int) error {
	for next := ""; ; {
		r := core.Get().Resource(resource).Param("limit", strconv.Itoa(page))
		if next != "" {
			r = r.Param("continue", next)
		}
		list := P(new(T))
		if err := r.Do(ctx).Into(list); err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		if add(list) > most {
			return ErrTooLarge
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// podGroups lists the PodGroups of a namespace, of any API group.
func (l *Lister) podGroups(ctx context.Context, namespace string) (all []map[string]any, err error) {
	for _, version := range []string{
		wellknown.PodGroupAPI + "/" + wellknown.PodGroupVersion, wellknown.PodGroupAPIXK8s + "/" + wellknown.PodGroupVersion,
		nativePodGroups,
	} {
		var list struct {
			Items []map[string]any `json:"items"`
		}
		if err := l.read(ctx, "/apis/"+version+"/namespaces/"+namespace+"/"+wellknown.PodGroups, &list); err != nil {
			return nil, err
		}
		all = append(all, list.Items...)
	}
	return all, nil
}

// read decodes an answer. A kind that is not served or may not be read is left out.
func (l *Lister) read(ctx context.Context, path string, into any) error {
	body, err := l.core.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// trimNode drops the unused fields.
func trimNode(n *corev1.Node) corev1.Node {
	out := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}, Spec: n.Spec}
	out.Status.Allocatable, out.Status.Conditions = n.Status.Allocatable, n.Status.Conditions
	return out
}

// trimPod drops the unused fields: environment, volumes, commands.
func trimPod(p *corev1.Pod) corev1.Pod {
	out := corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
	out.ManagedFields, out.Spec.Volumes = nil, nil
	out.Spec.InitContainers, out.Spec.Containers = trimContainers(p.Spec.InitContainers), trimContainers(p.Spec.Containers)
	out.Status.Phase, out.Status.Conditions, out.Status.StartTime = p.Status.Phase, p.Status.Conditions, p.Status.StartTime
	return out
}

func trimContainers(all []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(all))
	for i := range all {
		c := &all[i]
		out[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy, Ports: c.Ports}
	}
	return out
}
