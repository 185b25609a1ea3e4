// Package explain finds out why a pod or a gang has no node. It counts with the
// scheduler's own packages on what the API server and topo-master answer, so that
// it works for any scheduler's pods, and while none runs. A [Lister] reads the
// cluster; the rest is pure. It writes nothing.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Cluster holds the objects that explain pending pods.
type Cluster struct {
	Nodes []corev1.Node
	Pods  []corev1.Pod
	// PodGroups are the objects of that kind, of any API group, as JSON decoded into
	// maps.
	PodGroups []map[string]any
	// Groups is the answer of GET /node_group, empty if it is unknown.
	Groups []v1alpha1.Group
	// Spares are the idle nodes of each lowest group that are kept for repair; see [placement.Spares].
	Spares intstr.IntOrString
	// Budgets limit what preemption evicts.
	Budgets []policyv1.PodDisruptionBudget
	// Classes and Slices offer devices to pods with ResourceClaims; Claims have the devices in use.
	Classes []resourceapi.DeviceClass
	Slices  []resourceapi.ResourceSlice
	Claims  []resourceapi.ResourceClaim

	// reserved has the devices for the claims of pods that are planned.
	reserved planner.Reservations
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
	// Avoids are nodes on which gangs failed: heddle-scheduler uses them only without other room.
	Avoids []string `json:"avoids,omitempty"`
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
	Pods     int             `json:"pods"`
	Requests planner.Amounts `json:"requests"`
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

// Victim is a gang, or a pod without a gang, that preemption would evict.
type Victim struct {
	Name     string `json:"name"`
	Pods     int    `json:"pods"`
	Priority int32  `json:"priority"`
}

// ErrUnknown is for a name that neither a pod nor a gang has.
var ErrUnknown = errors.New("no such pod or gang")

// Of answers for the pod of that name, else for the gang. A member waits for what its gang waits for.
// ctx bounds the search for victims.
func Of(ctx context.Context, c *Cluster, namespace, name string, now time.Time) (*Answer, error) {
	a := &Answer{Namespace: namespace, Name: name}
	gangs := map[string][]*corev1.Pod{}
	var members []*corev1.Pod
	for i := range c.Pods {
		p := &c.Pods[i]
		m, in := gang.MemberOf(p, gpus(p))
		if in {
			gangs[m.Gang] = append(gangs[m.Gang], p)
		}
		switch {
		case p.Namespace != namespace || p.Name != name:
		case in:
			_, a.Name, _ = strings.Cut(m.Gang, "/")
		default:
			members = []*corev1.Pod{p}
		}
	}
	if members == nil {
		a.Gang, members = true, gangs[namespace+"/"+a.Name]
	}
	if len(members) == 0 {
		return nil, fmt.Errorf("%w: namespace %s has no pod and no gang %s", ErrUnknown, namespace, name)
	}
	if m, in := gang.MemberOf(members[0], gpus(members[0])); in {
		a.API = string(m.API)
	}
	placement.OrderPods(members)
	spec := c.specOf(a, members)
	a.MinMember = spec.MinMember
	if pods := a.count(members); a.Pods > a.Bound {
		a.explain(ctx, newQuestion(ctx, c, a, &spec, pods, now), c)
	}
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
		if spec, _ := gang.ReadObject(raw, d); a.Gang && spec.Key == key {
			// Kubernetes' own has the number elsewhere.
			if n, ok, _ := unstructured.NestedNumberAsFloat64(raw, "spec", "schedulingPolicy", "gang", "minCount"); ok {
				spec.MinMember = int(n)
			}
			object = &spec
		}
	}
	spec, _ := gang.Merge(specs, object)
	return spec
}

// count counts the pods, and returns those that did not fail: the controller of a failed pod makes
// another, or it does not run again.
func (a *Answer) count(members []*corev1.Pod) (pods []*corev1.Pod) {
	reported := map[string]bool{}
	for _, p := range members {
		if p.Status.Phase == corev1.PodFailed {
			continue
		}
		pods = append(pods, p)
		if p.Spec.NodeName != "" {
			a.Bound++
			continue
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
				reported[c.Message] = true
			}
		}
	}
	a.Pods, a.Reported = len(pods), slices.Sorted(maps.Keys(reported))
	a.Reported = a.Reported[:min(len(a.Reported), 3)]
	return pods
}

// explain finds the reasons. The planner sees the nodes by name, as the scheduler does.
func (a *Answer) explain(ctx context.Context, q *question, c *Cluster) {
	for _, class := range q.classes {
		requests := maps.Clone(class.Amounts)
		delete(requests, corev1.ResourcePods)
		if class.Claims != nil {
			for name, n := range class.Claims.Devices {
				requests[corev1.ResourceName(name)] = n
			}
		}
		a.Asks = append(a.Asks, Ask{q.pods[class], requests})
	}
	if a.Nodes = q.reasons(); q.fault != "" {
		return
	}
	a.Groups = q.rooms(c.Groups)
	lacks := q.planner.Plan(&q.request).Reason
	if _, room := q.place(q.waiting, q.waiting.MinMember); room {
		a.Rules = lacks
	}
	if lacks != "" {
		a.Victims = q.preempt(ctx, c)
	}
	a.Fits = q.fits(a)
}

// isGPU reports whether a resource is whole GPUs of any maker: nvidia.com/gpu, or nvidia.com/gpu.exclusive
// where shares have that name.
func isGPU(name corev1.ResourceName) bool {
	return strings.HasSuffix(string(name), "/gpu") || strings.HasSuffix(string(name), "/gpu.exclusive")
}

// gpus returns the number of GPUs that a pod requests, of any vendor.
func gpus(p *corev1.Pod) (n int32) {
	for name, value := range planner.Requests(p) {
		if isGPU(name) {
			n += int32(value) //nolint:gosec // Few.
		}
	}
	return n
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
func Requests(of planner.Amounts) string {
	parts := make([]string, 0, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, quantity(name, of[name])+" "+string(name))
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing")
}
