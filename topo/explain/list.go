package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/manifest"
)

// freshFor is the time for which a list answers further questions.
const freshFor = 5 * time.Second

// ErrTooLarge is for a cluster with more nodes or pods than the limits of a Lister.
var ErrTooLarge = errors.New("the cluster is too large to be listed for this: ask with the command heddle why")

// ErrManifest is for a manifest that refers to an object that does not exist.
var ErrManifest = errors.New("invalid manifest")

// Lister answers from lists that the API server returns on demand. Concurrent questions wait for
// each other and share a list, so that memory holds the cluster only once and briefly.
type Lister struct {
	// Spares are the cluster's.
	Spares   intstr.IntOrString
	core     rest.Interface
	maxNodes int
	maxPods  int
	clock    clock.PassiveClock
	// mu is held by the question that lists, or uses what was listed.
	mu     sync.Mutex
	known  *Cluster
	listed time.Time
}

// NewLister returns a lister of at most that many nodes and pods.
func NewLister(core rest.Interface, maxNodes, maxPods int, c clock.PassiveClock) *Lister {
	return &Lister{core: core, maxNodes: maxNodes, maxPods: maxPods, clock: c}
}

// Explain answers as [Of] does. groups are the answer of GET /node_group.
func (l *Lister) Explain(ctx context.Context, groups []v1alpha1.Group, namespace, name string) (*Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, err := l.cluster(ctx, groups, namespace)
	if err != nil {
		return nil, err
	}
	return Of(ctx, known, namespace, name, l.clock.Now())
}

// Fit answers as [FitOf] does for a manifest, with priorities and templates of claims that the cluster has.
func (l *Lister) Fit(ctx context.Context, groups []v1alpha1.Group, set *manifest.Set) (*Fit, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	namespaces := sets.Set[string]{}
	for i := range set.Jobs {
		namespaces.Insert(set.Jobs[i].Namespace)
	}
	known, err := l.cluster(ctx, groups, sets.List(namespaces)...)
	if err == nil {
		err = errors.Join(l.prioritize(ctx, set.Pods), l.claim(ctx, set))
	}
	if err != nil {
		return nil, err
	}
	return FitOf(ctx, known, set, l.clock.Now()), nil
}

// cluster returns the cluster with the PodGroups of some namespaces.
func (l *Lister) cluster(ctx context.Context, groups []v1alpha1.Group, namespaces ...string) (*Cluster, error) {
	if now := l.clock.Now(); l.known == nil || now.Sub(l.listed) > freshFor {
		l.known = nil // The old list need not live beside the new one.
		known, err := l.list(ctx)
		if err != nil {
			return nil, err
		}
		l.known, l.listed = known, now
	}
	known := *l.known
	known.Groups, known.Spares = groups, l.Spares
	for _, namespace := range namespaces {
		all, err := l.podGroups(ctx, namespace)
		if err != nil {
			return nil, err
		}
		known.PodGroups = append(known.PodGroups, all...)
	}
	return &known, nil
}

// prioritize gives pods the numbers of their priority classes, as admission does.
func (l *Lister) prioritize(ctx context.Context, pods []*corev1.Pod) error {
	var classes schedulingv1.PriorityClassList
	if err := l.read(ctx, "/apis/scheduling.k8s.io/v1/priorityclasses", &classes); err != nil {
		return err
	}
	for _, pod := range pods {
		for i := range classes.Items {
			c, name := &classes.Items[i], pod.Spec.PriorityClassName
			if pod.Spec.Priority == nil && (c.Name == name || name == "" && c.GlobalDefault) {
				pod.Spec.Priority = &c.Value
			}
		}
	}
	return nil
}

// claim makes the claims that pods of a manifest get by its templates, or the cluster's.
func (l *Lister) claim(ctx context.Context, set *manifest.Set) error {
	for _, pod := range set.Pods {
		for i := range pod.Spec.ResourceClaims {
			ref := &pod.Spec.ResourceClaims[i]
			if ref.ResourceClaimTemplateName == nil {
				continue
			}
			name := types.NamespacedName{Namespace: pod.Namespace, Name: *ref.ResourceClaimTemplateName}
			t := set.Templates[name]
			if t == nil {
				t = &resourceapi.ResourceClaimTemplate{}
				path := "/apis/resource.k8s.io/v1/namespaces/" + name.Namespace + "/resourceclaimtemplates/" + name.Name
				if err := l.read(ctx, path, t); err != nil {
					return err
				}
				set.Templates[name] = t
			}
			if t.Name == "" {
				return fmt.Errorf("%w: ResourceClaimTemplate %s not found", ErrManifest, name)
			}
			set.Claim(pod, ref, t)
		}
	}
	return nil
}

// list lists nodes, pods and disruption budgets, and drops the fields of pods that take memory and are not used.
func (l *Lister) list(ctx context.Context) (*Cluster, error) {
	out := &Cluster{}
	keep := func(o runtime.Object) error {
		switch o := o.(type) {
		case *corev1.Node:
			out.Nodes = append(out.Nodes, *o)
		case *corev1.Pod:
			o.ManagedFields, o.Spec.Volumes = nil, nil
			for _, containers := range [][]corev1.Container{o.Spec.InitContainers, o.Spec.Containers} {
				for i, c := range containers {
					containers[i] = corev1.Container{
						Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy, Ports: c.Ports,
					}
				}
			}
			out.Pods = append(out.Pods, *o)
		}
		if len(out.Nodes) > l.maxNodes || len(out.Pods) > l.maxPods {
			return ErrTooLarge
		}
		return nil
	}
	for _, resource := range []string{"nodes", "pods"} {
		pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			r := l.core.Get().Resource(resource).Param("limit", strconv.FormatInt(o.Limit, 10))
			return r.Param("continue", o.Continue).Do(ctx).Get()
		})
		if err := pages.EachListItem(ctx, metav1.ListOptions{}, keep); err != nil {
			return nil, fmt.Errorf("list %s: %w", resource, err)
		}
	}
	var budgets policyv1.PodDisruptionBudgetList
	err := l.read(ctx, "/apis/policy/v1/poddisruptionbudgets", &budgets)
	out.Budgets = budgets.Items
	return out, errors.Join(err, l.claims(ctx, out))
}

// claims reads what pods get devices from by ResourceClaims, where there are DeviceClasses.
func (l *Lister) claims(ctx context.Context, out *Cluster) error {
	const api = "/apis/resource.k8s.io/v1/"
	var classes resourceapi.DeviceClassList
	err := l.read(ctx, api+"deviceclasses", &classes)
	if out.Classes = classes.Items; len(classes.Items) == 0 {
		return err
	}
	var published resourceapi.ResourceSliceList
	var claims resourceapi.ResourceClaimList
	err = errors.Join(l.read(ctx, api+"resourceslices", &published), l.read(ctx, api+"resourceclaims", &claims))
	out.Slices, out.Claims = published.Items, claims.Items
	return err
}

// podGroups lists the PodGroups of a namespace, of any API group.
func (l *Lister) podGroups(ctx context.Context, namespace string) (all []map[string]any, err error) {
	for _, version := range []string{
		wellknown.PodGroupAPI + "/" + wellknown.PodGroupVersion, wellknown.PodGroupAPIXK8s + "/" + wellknown.PodGroupVersion,
		"scheduling.k8s.io/v1beta1", // Kubernetes' own.
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
