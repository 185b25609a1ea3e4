package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/manifest"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Fit answers whether the pods of a manifest would get nodes now.
type Fit struct {
	Jobs []manifest.Job `json:"jobs"`
	// Ignored names objects of the manifest that make no pods.
	Ignored []string `json:"ignored,omitempty"`
	// Fits is true if all pods get nodes, each gang beside the gangs before it.
	Fits  bool      `json:"fits"`
	Gangs []Planned `json:"gangs"`
}

// Planned is the answer for pods that are placed together: a gang, or the pods of a job in no gang.
type Planned struct {
	Answer
	// Group and Kind are of the smallest group that has all the nodes; empty if none has.
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// Places are in the order of ranks; empty if the pods do not fit.
	Places []Place `json:"places,omitempty"`
	// When estimates when they fit; nil if they fit now.
	When *When `json:"when,omitempty"`

	pods []*corev1.Pod
}

// Place is the node that a pod would get.
type Place struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
}

// When estimates when pods fit. It assumes that running pods end when expected, and that no other pod gets their room.
type When struct {
	// At is zero if the known ends are not enough.
	At time.Time `json:"at,omitzero"`
	// After names the gangs and pods that end by then and hold what the pods request.
	After []string `json:"after,omitempty"`
	// Endless counts the pods of the cluster that run with devices and have no expected end, and Ahead the pods with
	// devices that wait with the same priority or a higher one.
	Endless int `json:"endless"`
	Ahead   int `json:"ahead"`
	// Never is why the pods can never fit; empty if they can.
	Never string `json:"never,omitempty"`
}

// FitOf plans the pods of a manifest, gang after gang. Its pods change.
func FitOf(ctx context.Context, c *Cluster, set *manifest.Set, now time.Time) *Fit {
	fit := &Fit{Jobs: set.Jobs, Ignored: set.Ignored, Fits: true}
	own := *c
	own.Pods, own.PodGroups = slices.Clone(c.Pods), slices.Concat(c.PodGroups, set.PodGroups)
	own.Claims = slices.Concat(set.Claims, c.Claims) // Claims of one name are the cluster's.
	own.reserved = planner.Reservations{}
	fit.Gangs = together(set)
	for i := range fit.Gangs {
		p := &fit.Gangs[i]
		own.fit(ctx, p, now)
		fit.Fits = fit.Fits && len(p.Places) > 0
		for _, pod := range p.pods { // The next gang is beside it.
			own.Pods = append(own.Pods, *pod)
		}
	}
	return fit
}

// together returns each gang, and each job in no gang, with its pods.
func together(set *manifest.Set) (all []Planned) {
	at, rest := map[string]int{}, set.Pods
	for i := range set.Jobs {
		j := &set.Jobs[i]
		for _, pod := range rest[:j.Pods] {
			p, key := Planned{Answer: Answer{Namespace: pod.Namespace, Name: j.Name}}, fmt.Sprint(i)
			if m, in := gang.MemberOf(pod, gpus(pod)); in {
				p.API, key = string(m.API), m.Key()
				_, p.Name, _ = strings.Cut(m.Gang, "/")
			}
			if _, known := at[key]; !known {
				at[key], all = len(all), append(all, p)
			}
			all[at[key]].pods = append(all[at[key]].pods, pod)
		}
		rest = rest[j.Pods:]
	}
	return all
}

// fit plans pods that are placed together, gives them their nodes, and reserves the devices of their claims.
func (c *Cluster) fit(ctx context.Context, p *Planned, now time.Time) {
	p.Gang, p.Pods = len(p.pods) > 1, len(p.pods)
	placement.OrderPods(p.pods)
	spec := c.specOf(&p.Answer, p.pods)
	if p.MinMember = cmp.Or(spec.MinMember, p.Pods); p.MinMember > p.Pods {
		p.When = &When{Never: fmt.Sprintf("the manifest has %d of the %d pods that the gang needs", p.Pods, p.MinMember)}
		return
	}
	ask := func(c *Cluster) (*question, planner.Plan) {
		q := newQuestion(ctx, c, &p.Answer, &spec, p.pods, now)
		if q.fault != "" {
			return q, planner.Plan{Reason: q.fault}
		}
		return q, q.planner.Plan(&q.request)
	}
	q, plan := ask(c)
	if plan.Reason != "" {
		p.explain(ctx, q, c)
		p.When = c.when(q, ask)
		return
	}
	place := &plan.Places[0]
	p.Group, p.Kind = place.Group, place.Kind
	for i, node := range place.Nodes {
		m := &q.request.Gangs[0].Members[i]
		m.Pod.Spec.NodeName = node
		p.Places = append(p.Places, Place{m.Pod.Name, node})
		if m.Class.Claims != nil { // With another UID: what is reserved for a pod on the node does not count.
			c.reserved[node] = append(c.reserved[node], planner.Reservation{
				UID: m.Pod.UID + "/claims", Priority: math.MaxInt32, Claims: m.Class.Claims,
			})
		}
	}
}

// when finds the first end of running pods after which a question has a plan.
func (c *Cluster) when(q *question, ask func(*Cluster) (*question, planner.Plan)) *When {
	w, own := &When{}, schedulehelpers.PodPriority(q.waiting.Members[0].Pod)
	never := time.Unix(math.MaxInt32, 0)
	ends := map[types.UID]time.Time{}
	for i := range c.Pods {
		pod := &c.Pods[i]
		var h Holder
		switch h.add(pod, q.now); {
		case !holds(pod) || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		case pod.Spec.NodeName == "" && schedulehelpers.PodPriority(pod) >= own:
			w.Ahead++
		case pod.Spec.NodeName == "":
		case strings.HasPrefix(string(pod.UID), manifest.UIDPrefix):
			ends[pod.UID] = never
		case h.Until.IsZero():
			w.Endless++
			ends[pod.UID] = never
		default:
			ends[pod.UID] = h.Until
		}
	}
	gone := func(pod types.UID, at time.Time) bool {
		end, known := ends[pod]
		return known && !end.After(at)
	}
	without := func(at time.Time) planner.Plan {
		left := *c
		if at.Equal(never) {
			left.reserved = nil
		}
		left.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(p corev1.Pod) bool { return gone(p.UID, at) })
		left.Claims = slices.DeleteFunc(slices.Clone(c.Claims), func(claim resourceapi.ResourceClaim) bool {
			users := claim.Status.ReservedFor
			return len(users) > 0 && !slices.ContainsFunc(users, func(u resourceapi.ResourceClaimConsumerReference) bool {
				return !gone(u.UID, at)
			})
		})
		_, plan := ask(&left)
		return plan
	}
	if reason := without(never).Reason; reason != "" {
		w.Never = "an empty cluster has no room: " + reason
		return w
	}
	times := slices.Compact(slices.SortedFunc(maps.Values(ends), time.Time.Compare))
	// More room never fits worse.
	first := sort.Search(len(times), func(i int) bool { return without(times[i]).Reason == "" })
	if first == len(times) || times[first].Equal(never) {
		return w
	}
	w.At = times[first]
	nodes := without(w.At).Places[0].Nodes
	w.After = c.holdersOf(func(p *corev1.Pod) bool { return gone(p.UID, w.At) && slices.Contains(nodes, p.Spec.NodeName) })
	if len(w.After) == 0 { // Their nodes are kept for repair then, and others are not.
		w.After = c.holdersOf(func(p *corev1.Pod) bool { return gone(p.UID, w.At) })
	}
	return w
}

// holdersOf names the gangs and pods that some pods belong to.
func (c *Cluster) holdersOf(some func(*corev1.Pod) bool) (names []string) {
	for i := range c.Pods {
		if pod := &c.Pods[i]; some(pod) && !slices.Contains(names, holderOf(pod)) {
			names = append(names, holderOf(pod))
		}
	}
	return names
}

// holds reports whether a pod may hold devices.
func holds(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || len(planner.Requests(pod).Devices()) > 0
}
