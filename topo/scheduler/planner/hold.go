package planner

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Waiting is a gang for which nodes are reserved, since it has waited for some time. Without a name it is any running
// gang that needs repair.
type Waiting struct {
	Gang types.NamespacedName
	For  time.Duration
}

func (w *Waiting) String() string {
	if w.Gang.Name == "" {
		return "the repair of running gangs"
	}
	return fmt.Sprintf("gang %s, which has waited %s", w.Gang, duration.HumanDuration(w.For))
}

// Hold returns what to reserve for gangs that have no room: the places of a plan without the gangs and pods that have
// run for the longest, as few of these as possible, and with as few idle nodes as possible beside theirs. Nothing is
// known about how long pods run: the oldest count as the first to end, and pods that are always restarted as never
// ending. Only devices are reserved. It is empty if the gangs would not fit without all pods that end.
func (p *Planner) Hold(r *Request, known map[types.UID]types.NamespacedName, waiting *Waiting) Reservations {
	trial, runs, places := *r, r.ending(known), []Place(nil)
	trial.Gangs = slices.Clone(r.Gangs)
	fit := func() bool {
		plan := p.Plan(&trial)
		if plan.Places != nil {
			places = plan.Places // The last plan that fits is the result's.
		}
		return plan.Places != nil
	}
	without := func(n int) bool {
		trial.Gone = map[string]Gone{}
		for _, v := range runs[:n] {
			for node, gone := range v.gone {
				if before, shared := trial.Gone[node]; shared {
					gone = before.Union(gone)
				}
				trial.Gone[node] = gone
			}
		}
		return fit()
	}
	if !without(len(runs)) {
		return nil
	}
	without(sort.Search(len(runs), without))
	var beside []string
	for _, n := range r.Nodes {
		if len(trial.Gone[n.Name].UIDs) == 0 {
			beside = append(beside, n.Name)
		}
	}
	sort.Search(len(beside), func(n int) bool {
		for i := range trial.Gangs {
			trial.Gangs[i].Avoid = slices.Concat(r.Gangs[i].Avoid, beside[n:])
		}
		return fit()
	})
	return r.kept(places, waiting)
}

// kept returns the devices that members need on the nodes of a plan.
func (r *Request) kept(places []Place, waiting *Waiting) Reservations {
	held := Reservations{}
	for i, place := range places {
		for at, node := range place.Nodes {
			one := r.Gangs[i].Members[at].Reservation()
			one.Waiting, one.Amounts = waiting, one.Amounts.Devices()
			if node != "" && len(one.Amounts) > 0 {
				held[node] = append(held[node], one)
			}
		}
	}
	return held
}

// Devices returns the amounts of extended resources.
func (a Amounts) Devices() Amounts {
	out := Amounts{}
	for name, value := range a {
		if strings.Contains(string(name), "/") {
			out[name] = value
		}
	}
	return out
}

// ending returns the other gangs and pods on nodes that end some day, the oldest first.
func (r *Request) ending(known map[types.UID]types.NamespacedName) (runs []*victim) {
	of, own := map[types.NamespacedName]*victim{}, map[types.UID]bool{}
	for i := range r.Gangs {
		for _, m := range r.Gangs[i].Members {
			own[m.Pod.UID] = true
		}
	}
	for _, node := range r.Nodes {
		for _, pod := range node.Pods {
			if own[pod.UID] || pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && pod.DeletionTimestamp == nil {
				continue
			}
			key, _ := gangOf(pod, known)
			if of[key] == nil {
				of[key] = &victim{gone: map[string]Gone{}}
				runs = append(runs, of[key])
			}
			of[key].add(node.Name, pod, nil)
		}
	}
	slices.SortStableFunc(runs, func(a, b *victim) int { return a.since.Compare(b.since) })
	return runs
}
