// Package pending answers why a pod, or the pods of a gang, have no node: the answer of
// `heddle why`, of the same code, for topo-master's page.
//
// It owns what is listed for that, and how much: the informers keep too little of pods and
// Nodes to count with, and to keep all would take many times their memory. So the cluster is
// listed when someone asks, by one at a time, and used for a moment. It decides nothing.
package pending

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
	"github.com/heddle-dev/heddle/topo/scheduler/explain"
)

const (
	// MaxNodes and MaxPods bound what is listed: some 100 MB for a moment.
	MaxNodes = 5_000
	MaxPods  = 50_000
	// page is how many objects an answer of the API server has.
	page = 500
	// freshFor is how long a list answers further questions.
	freshFor = 5 * time.Second
	// timeout ends a question.
	timeout = 15 * time.Second
)

var (
	// ErrUnknown is for a name that neither a pod nor a gang has.
	ErrUnknown = errors.New("no such pod or gang")
	// ErrTooLarge is for a cluster of more nodes or pods than are listed.
	ErrTooLarge = fmt.Errorf(
		"the cluster has more than %d nodes or %d pods, which are not listed for this: ask with the command heddle why",
		MaxNodes, MaxPods)
)

// Lister asks the API server. It is safe for concurrent use.
type Lister struct {
	core  rest.Interface
	clock clock.PassiveClock
	// listing is held by the one that lists, or uses what was listed.
	listing chan struct{}
	known   *explain.Cluster
	listed  time.Time
}

// New returns a lister; the clock is the real one if nil.
func New(core rest.Interface, c clock.PassiveClock) *Lister {
	if c == nil {
		c = clock.RealClock{}
	}
	return &Lister{core: core, clock: c, listing: make(chan struct{}, 1)}
}

// Explain answers for the pod of that name, else for the gang. groups are as of GET /node_group.
func (l *Lister) Explain(
	ctx context.Context, groups []v1alpha1.Group, namespace, name string,
) (*explain.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another question: %w", ctx.Err())
	case l.listing <- struct{}{}:
	}
	defer func() { <-l.listing }()
	if now := l.clock.Now(); l.known == nil || now.Sub(l.listed) > freshFor {
		l.known = nil // What was listed need not live while it is listed again.
		known, err := l.list(ctx)
		if err != nil {
			return nil, err
		}
		l.known, l.listed = known, now
	}
	known := *l.known
	known.Groups = groups
	answer, err := explain.Of(&known, namespace, name, l.clock.Now())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return answer, nil
}

func (l *Lister) list(ctx context.Context) (*explain.Cluster, error) {
	out := &explain.Cluster{}
	err := pages(ctx, l.core, "nodes", MaxNodes, func(list *corev1.NodeList) int {
		for i := range list.Items {
			out.Nodes = append(out.Nodes, trimNode(&list.Items[i]))
		}
		return len(out.Nodes)
	})
	if err != nil {
		return nil, err
	}
	err = pages(ctx, l.core, "pods", MaxPods, func(list *corev1.PodList) int {
		for i := range list.Items {
			out.Pods = append(out.Pods, trimPod(&list.Items[i]))
		}
		return len(out.Pods)
	})
	if err != nil {
		return nil, err
	}
	return out, l.listOthers(ctx, out)
}

// pages reads a list of core/v1, page by page. add returns how many objects it has now,
// which may be most.
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

// listOthers lists PodGroups and PodDisruptionBudgets. What is not served, or may not be
// read, is left out, as in the command.
func (l *Lister) listOthers(ctx context.Context, out *explain.Cluster) error {
	for _, version := range []string{
		wellknown.PodGroupAPI + "/" + wellknown.PodGroupVersion, wellknown.PodGroupAPIXK8s + "/" + wellknown.PodGroupVersion,
		explain.NativePodGroups,
	} {
		var list struct {
			Items []map[string]any `json:"items"`
		}
		if err := l.read(ctx, "/apis/"+version+"/"+wellknown.PodGroups, &list); err != nil {
			return err
		}
		out.PodGroups = append(out.PodGroups, list.Items...)
	}
	var budgets policyv1.PodDisruptionBudgetList
	err := l.read(ctx, "/apis/policy/v1/poddisruptionbudgets", &budgets)
	out.Budgets = budgets.Items
	return err
}

func (l *Lister) read(ctx context.Context, path string, into any) error {
	body, err := l.core.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx)
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", path, err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// trimNode is what is counted with.
func trimNode(n *corev1.Node) corev1.Node {
	out := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}, Spec: n.Spec}
	out.Status.Allocatable, out.Status.Conditions = n.Status.Allocatable, n.Status.Conditions
	return out
}

// trimPod is what is counted with: no environment, no volumes, no commands.
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
