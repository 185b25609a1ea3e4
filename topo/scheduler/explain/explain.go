// Package explain finds out why a pod or a gang has no node. It counts with the
// scheduler's own packages on what the API server and topo-master answer, so that
// it works for any scheduler's pods, and while none runs. A [Lister] reads the
// cluster; the rest is pure. It writes nothing.
package explain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/gang/rank"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// nativePodGroups is the group and version of Kubernetes' own PodGroups.
const nativePodGroups = "scheduling.k8s.io/v1beta1"

// Cluster holds the objects that explain pending pods.
type Cluster struct {
	Nodes []corev1.Node
	Pods  []corev1.Pod
	// PodGroups are the objects of that kind, of any API group, as JSON decoded into
	// maps.
	PodGroups []map[string]any
	// Groups is the answer of GET /node_group, empty if it is unknown.
	Groups []v1alpha1.Group
	// Budgets limit what preemption evicts.
	Budgets []policyv1.PodDisruptionBudget
}

// Answer explains why a pod, or the pods of a gang, have no node.
type Answer struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Gang is true for a gang, API what makes it one.
	Gang bool   `json:"gang"`
	API  string `json:"api,omitempty"`
	// Pods is the number of pods without the failed ones, MinMember the number that must have a
	// node before any starts, or 0, and Bound the number of bound pods.
	Pods      int `json:"pods"`
	MinMember int `json:"minMember"`
	Bound     int `json:"bound"`
	// Asks are the different requests of the pods that wait.
	Asks []Ask `json:"asks,omitempty"`
	// Reported holds the schedulers' messages in the pods' condition PodScheduled.
	Reported []string `json:"reported,omitempty"`
	// Nodes are the reasons against nodes, for the pods that ask for most GPUs.
	Nodes []Reason `json:"nodes,omitempty"`
	// Groups lists the groups, the ones with most room first.
	Groups []Room `json:"groups,omitempty"`
	// Fits describes what fits now, in sentences.
	Fits []string `json:"fits,omitempty"`
	// Rules names the topologySpreadConstraints and the required anti-affinity that leave no place
	// although there is room.
	Rules string `json:"rules,omitempty"`
	// Victims lists what preemption would evict to make room, if that is enough.
	Victims []Victim `json:"victims,omitempty"`
}

// Ask holds the request of each pod of a class.
type Ask struct {
	Pods     int         `json:"pods"`
	Requests fit.Amounts `json:"requests"`
}

// Reason explains why some nodes take no pod.
type Reason struct {
	Reason string   `json:"reason"`
	Nodes  []string `json:"nodes"`
}

// Room is the number of waiting pods that a group would take now.
type Room struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Fit     int      `json:"fit"`
	Of      int      `json:"of"`
	Holders []Holder `json:"holders,omitempty"`
}

// Holder is a gang or a pod that holds the missing resource.
type Holder struct {
	Name string `json:"name"`
	// Owner is the controller of its pods, such as Job/train.
	Owner  string `json:"owner,omitempty"`
	Amount int64  `json:"amount"`
	// Resource is the resource held, Since the time when its first pod got a node, and Until the
	// expected end of its last pod, zero if unknown.
	Resource string    `json:"resource"`
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"`
}

// ErrUnknown is for a name that neither a pod nor a gang has.
var ErrUnknown = errors.New("no such pod or gang")

// Of answers for the pod of that name, else for the gang. ctx bounds the search for victims.
func Of(ctx context.Context, c *Cluster, namespace, name string, now time.Time) (*Answer, error) {
	q := newQuestion(c, now)
	a := &Answer{Namespace: namespace, Name: name}
	var members []*corev1.Pod
	for i := range c.Pods {
		if p := &c.Pods[i]; p.Namespace == namespace && p.Name == name {
			if m, ok := gang.MemberOf(p, gpus(p)); ok {
				// A member waits for what its gang waits for.
				_, a.Name, _ = strings.Cut(m.Gang, "/")
			} else {
				members = []*corev1.Pod{p}
			}
		}
	}
	if members == nil {
		a.Gang = true
		for i := range c.Pods {
			p := &c.Pods[i]
			if m, ok := gang.MemberOf(p, gpus(p)); ok && m.Gang == namespace+"/"+a.Name {
				members, a.API = append(members, p), string(m.API)
			}
		}
	}
	if len(members) == 0 {
		return nil, fmt.Errorf("%w: namespace %s has no pod and no gang %s", ErrUnknown, namespace, name)
	}
	rank.Order(members)
	spec := c.specOf(a, members)
	a.MinMember = spec.MinMember
	q.answer(ctx, a, &spec, members, c)
	return a, nil
}

// specOf returns the declaration of a gang by its pods and its PodGroup. The scheduler reports
// contradictions.
func (c *Cluster) specOf(a *Answer, members []*corev1.Pod) gang.Spec {
	d := wellknown.DefaultDomains()
	d.Vendor = wellknown.VendorAuto // amd.com/gpu has amd.com/gpu-group-size beside it.
	key := types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
	specs := make([]gang.Spec, len(members))
	for i, p := range members {
		var err error
		if specs[i], err = gang.Read(p, d); errors.Is(err, gang.ErrNoGang) {
			specs[i], _ = gang.ReadPlacement(key, p.Annotations, d)
		}
	}
	var object *gang.Spec
	for _, raw := range c.PodGroups {
		u := unstructured.Unstructured{Object: raw}
		if !a.Gang || u.GetNamespace() != a.Namespace || u.GetName() != a.Name {
			continue
		}
		spec, _ := gang.ReadObject(raw, d)
		// Kubernetes' own has the number elsewhere.
		switch n, _, _ := unstructured.NestedFieldNoCopy(raw, "spec", "schedulingPolicy", "gang", "minCount"); n := n.(type) {
		case int64:
			spec.MinMember = int(n)
		case float64: // Of encoding/json.
			spec.MinMember = int(n)
		}
		object = &spec
	}
	spec, _ := gang.Merge(specs, object)
	return spec
}

// question is a cluster that is asked.
type question struct {
	nodes map[string]*fit.Node
	// groups are topo-master's, and tree has the nodes that are in none as well.
	groups []v1alpha1.Group
	tree   *placement.Tree
	now    time.Time
}

func newQuestion(c *Cluster, now time.Time) *question {
	q := &question{nodes: map[string]*fit.Node{}, groups: c.Groups, now: now}
	pods := map[string][]*corev1.Pod{}
	for i := range c.Pods {
		p := &c.Pods[i]
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			pods[p.Spec.NodeName] = append(pods[p.Spec.NodeName], p)
		}
	}
	names := make([]string, len(c.Nodes))
	for i := range c.Nodes {
		names[i] = c.Nodes[i].Name
		q.nodes[names[i]] = fit.NewNode(&c.Nodes[i], pods[names[i]]...)
	}
	tree, err := placement.New(c.Groups, names...)
	if err != nil {
		// A topology that contradicts itself counts as none, as in the scheduler.
		q.groups = nil
		tree, _ = placement.New(nil, names...)
	}
	q.tree = tree
	return q
}

// isGPU reports whether a resource is whole GPUs of any maker: nvidia.com/gpu, or nvidia.com/gpu.exclusive
// where shares have that name.
func isGPU(name corev1.ResourceName) bool {
	return strings.HasSuffix(string(name), "/gpu") || strings.HasSuffix(string(name), "/gpu.exclusive")
}

// gpus returns the number of GPUs that a pod requests, of any vendor.
func gpus(p *corev1.Pod) (n int32) {
	for name, value := range fit.Requests(p) {
		if isGPU(name) {
			n += int32(value) //nolint:gosec // Few.
		}
	}
	return n
}

func (q *question) answer(ctx context.Context, a *Answer, spec *gang.Spec, members []*corev1.Pod, c *Cluster) {
	var pods []*corev1.Pod
	reported := map[string]bool{}
	for _, p := range members {
		if p.Status.Phase == corev1.PodFailed {
			continue // Its controller makes another, or it does not run again.
		}
		pods = append(pods, p)
		if p.Spec.NodeName != "" {
			a.Bound++
			continue
		}
		for i := range p.Status.Conditions {
			c := &p.Status.Conditions[i]
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
				reported[c.Message] = true
			}
		}
	}
	if a.Reported = slices.Sorted(maps.Keys(reported)); len(a.Reported) > 3 {
		a.Reported = a.Reported[:3]
	}
	if a.Pods = len(pods); a.Pods == a.Bound {
		return
	}
	p := q.plan(a, spec, pods)
	a.Asks = p.asks
	a.Nodes = p.reasons()
	a.Groups = p.rooms()
	lacks := p.planner.Plan(&p.request).Reason
	if _, room := p.place(p.waiting, p.waiting.MinMember); room {
		a.Rules = lacks
	}
	if lacks != "" {
		a.Victims = p.preempt(ctx, c)
	}
	a.Fits = p.fits(a)
}

// quantity returns an amount as users write it.
func quantity(name corev1.ResourceName, value int64) string {
	switch name {
	case corev1.ResourceCPU:
		return resource.NewMilliQuantity(value, resource.DecimalSI).String()
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return resource.NewQuantity(value, resource.BinarySI).String()
	default:
		return fmt.Sprint(value)
	}
}

// Requests are amounts as a sentence has them, in the order of names.
func Requests(of fit.Amounts) string {
	parts := make([]string, 0, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, quantity(name, of[name])+" "+string(name))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
