package week

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/manifest"
)

// Forecast compares what heddle plan says of gangs at their arrival with what becomes of them.
type Forecast struct {
	// Estimate is the expected duration of running gangs over the true one; 0 without any.
	Estimate float64
	// Fits counts the gangs that it says fit now, Waits the others. Wrong counts gangs that start later than it says at
	// once, or at once although it says later.
	Fits, Waits, Wrong int
	// Unknown counts the gangs of Waits without a time; Off has the differences to the time of the others that start.
	Unknown int
	Off     []time.Duration
}

// ForecastOf asks about each gang of a week whose number is divisible by every.
func ForecastOf(ctx context.Context, plan Plan, seed uint64, every int, estimate float64) Forecast {
	w := &week{cluster: newCluster(plan, seed), policy: &Map{}, running: map[*gang]bool{}}
	w.policy.Start(w.cluster, seed)
	rng := rand.New(rand.NewPCG(seed, 100))
	for _, g := range arrivals(rng, w.cluster) {
		w.push(event{at: g.at, kind: arrival, gang: g})
	}
	h, epoch := newHolder(w.cluster), time.Unix(0, 0)
	f, told := Forecast{Estimate: estimate}, map[*gang]time.Duration{}
	for len(w.events) > 0 && w.events[0].at <= Horizon {
		e := w.events[0]
		w.events, w.now = w.events[1:], e.at
		w.handle(&e)
		var said *explain.Fit
		if e.kind == arrival && e.gang.id%every == 0 {
			said = explain.FitOf(ctx, w.objects(h, estimate), e.gang.manifest(), epoch.Add(w.now))
		}
		w.schedule()
		for g, at := range told {
			if g.placed {
				f.Off = append(f.Off, (g.began - at).Abs())
				delete(told, g)
			}
		}
		if said == nil {
			continue
		}
		if said.Fits != e.gang.placed {
			f.Wrong++
		}
		switch when := said.Gangs[0].When; {
		case said.Fits:
			f.Fits++
		case when.At.IsZero():
			f.Waits, f.Unknown = f.Waits+1, f.Unknown+1
		default:
			f.Waits++
			told[e.gang] = when.At.Sub(epoch)
		}
	}
	slices.Sort(f.Off)
	return f
}

// objects returns the cluster as the API server and topo-master have it.
func (w *week) objects(h *holder, estimate float64) *explain.Cluster {
	out := &explain.Cluster{Groups: w.cluster.groups}
	for i, n := range h.nodes {
		node := *n
		node.Spec.Unschedulable = w.cluster.down[i]
		out.Nodes = append(out.Nodes, node)
	}
	for g := range w.running {
		for rank, n := range g.nodes {
			p := g.member(rank, h.nodes[n].Name)
			p.Status.StartTime = &p.CreationTimestamp
			if estimate > 0 {
				lasts := time.Duration(estimate * float64(g.ends-g.began))
				p.Annotations = map[string]string{wellknown.ExpectedDuration: lasts.String()}
			}
			out.Pods = append(out.Pods, *p)
		}
	}
	return out
}

// member returns a pod that says which gang it is of.
func (g *gang) member(rank int, node string) *corev1.Pod {
	p := g.pod(rank, node)
	p.Labels = map[string]string{wellknown.GangName: fmt.Sprint("gang-", g.id)}
	return p
}

func (g *gang) manifest() *manifest.Set {
	set := &manifest.Set{Jobs: []manifest.Job{{Kind: "Pod", Name: fmt.Sprint("gang-", g.id), Pods: g.pods}}}
	for rank := range g.pods {
		set.Pods = append(set.Pods, g.member(rank, ""))
	}
	return set
}

// PrintForecasts writes a table.
func PrintForecasts(w io.Writer, plan Plan, all []Forecast) error {
	_, err := fmt.Fprintf(w, "heddle plan at the arrival of gangs, for %s, %.0f %% of the GPUs asked for\n",
		plan.Name, 100*plan.Load)
	if err == nil {
		_, err = fmt.Fprintf(w, "%-28s %9s %6s %6s %8s %15s\n",
			"expected durations", "fits now", "wrong", "later", "unknown", "off, p50 / p90")
	}
	for i := range all {
		f := &all[i]
		name := map[float64]string{0: "none", 1: "exact"}[f.Estimate]
		if name == "" {
			name = fmt.Sprintf("%.0f times the true ones", f.Estimate)
		}
		off := "-"
		if n := len(f.Off); n > 0 {
			off = hours(f.Off[n/2]) + " / " + hours(f.Off[n*9/10])
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "%-28s %9d %6d %6d %8d %15s\n", name, f.Fits, f.Wrong, f.Waits, f.Unknown, off)
		}
	}
	return err
}
