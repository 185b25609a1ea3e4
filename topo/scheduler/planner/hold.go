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

// Waiting is a gang for which nodes are reserved, since it has waited for some time.
type Waiting struct {
	Gang types.NamespacedName
	For  time.Duration
}

func (w *Waiting) String() string {
	return fmt.Sprintf("gang %s, which has waited %s", w.Gang, duration.HumanDuration(w.For))
}

// Hold returns what to reserve for gangs that have no room: the places of a plan without the pods that have run for
// the longest, and as few of them as possible. So idle nodes come first, and a node that is kept stays among the
// first. Nothing is known about how long pods run: the oldest count as the first to end, and pods that are always
// restarted as never ending. Only devices are reserved. It is empty if the gangs would not fit without all pods that
// end.
func (p *Planner) Hold(r *Request, waiting *Waiting) Reservations {
	pods, trial, places := ending(r.Nodes), *r, []Place(nil)
	fit := func(without int) bool {
		trial.Gone = map[string]Gone{}
		for _, pod := range pods[:without] {
			gone := trial.Gone[pod.node]
			gone.Add(pod.uid, pod.amounts)
			trial.Gone[pod.node] = gone
		}
		plan := p.Plan(&trial)
		if plan.Places != nil {
			places = plan.Places
		}
		return plan.Places != nil
	}
	if fit(len(pods)) {
		sort.Search(len(pods), fit) // The last plan that fits is the result's.
	}
	held := Reservations{}
	for i, place := range places {
		for at, node := range place.Nodes {
			one := r.Gangs[i].Members[at].Reservation()
			one.Waiting, one.Amounts = waiting, one.Amounts.devices()
			if node != "" && len(one.Amounts) > 0 {
				held[node] = append(held[node], one)
			}
		}
	}
	return held
}

// devices returns the amounts of extended resources.
func (a Amounts) devices() Amounts {
	out := Amounts{}
	for name, value := range a {
		if strings.Contains(string(name), "/") {
			out[name] = value
		}
	}
	return out
}

// endingPod is a pod that ends some day.
type endingPod struct {
	node    string
	uid     types.UID
	amounts Amounts
	since   time.Time
}

// ending returns the pods that end, the oldest first.
func ending(nodes []*Node) (pods []endingPod) {
	for _, node := range nodes {
		for _, pod := range node.Pods {
			if pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || pod.DeletionTimestamp != nil {
				pods = append(pods, endingPod{node.Name, pod.UID, Requests(pod), started(pod)})
			}
		}
	}
	slices.SortStableFunc(pods, func(a, b endingPod) int { return a.since.Compare(b.since) })
	return pods
}
