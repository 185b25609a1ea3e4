package week

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
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

// epoch is the time of day at which a week begins.
var epoch = time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // A constant.

// ForecastOf asks about each gang of a week whose number is divisible by every.
func ForecastOf(ctx context.Context, plan Plan, seed uint64, every int, estimate float64) Forecast {
	w := &week{cluster: newCluster(plan, seed), policy: &Map{}, running: map[*gang]bool{}}
	w.policy.Start(w.cluster, seed)
	rng := rand.New(rand.NewPCG(seed, 100))
	for _, g := range arrivals(rng, w.cluster) {
		w.push(event{at: g.at, kind: arrival, gang: g})
	}
	f, told := Forecast{Estimate: estimate}, map[*gang]time.Duration{}
	for len(w.events) > 0 && w.events[0].at <= Horizon {
		e := w.events[0]
		w.events, w.now = w.events[1:], e.at
		w.handle(&e)
		var said *explain.Fit
		if e.kind == arrival && e.gang.id%every == 0 {
			said = explain.FitOf(ctx, w.objects(estimate), e.gang.manifest(), epoch.Add(w.now))
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
func (w *week) objects(estimate float64) *explain.Cluster {
	c, out := w.cluster, &explain.Cluster{}
	for n := range c.free {
		name := fmt.Sprintf("node-%05d", n)
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Spec.Unschedulable = c.down[n]
		node.Status.Allocatable = corev1.ResourceList{
			gpu: *resource.NewQuantity(perNode, resource.DecimalSI), corev1.ResourcePods: resource.MustParse("110"),
		}
		out.Nodes = append(out.Nodes, node)
		if s := int(c.spine[n]); s == len(out.Groups) {
			out.Groups = append(out.Groups, v1alpha1.Group{Name: fmt.Sprintf("spine-%03d", s), Kind: "spine"})
		}
		spine := &out.Groups[len(out.Groups)-1]
		leaf := fmt.Sprintf("leaf-%04d", c.leaf[n])
		if last := len(spine.Child) - 1; last < 0 || spine.Child[last].Name != leaf {
			spine.Child = append(spine.Child, v1alpha1.Group{Name: leaf, Kind: "leaf"})
		}
		in := &spine.Child[len(spine.Child)-1]
		in.Child = append(in.Child, v1alpha1.Group{Name: name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady})
	}
	for g := range w.running {
		for i, n := range g.nodes {
			p := g.pod(i)
			p.Spec.NodeName, p.Status.StartTime = out.Nodes[n].Name, &metav1.Time{Time: epoch.Add(g.began)}
			if estimate > 0 {
				lasts := time.Duration(estimate * float64(g.ends-g.began))
				p.Annotations = map[string]string{wellknown.ExpectedDuration: lasts.String()}
			}
			out.Pods = append(out.Pods, *p)
		}
	}
	return out
}

const gpu = corev1.ResourceName("nvidia.com/gpu")

// pod returns a pod of the gang.
func (g *gang) pod(rank int) *corev1.Pod {
	gpus := corev1.ResourceList{gpu: *resource.NewQuantity(int64(g.gpus), resource.DecimalSI)}
	name := fmt.Sprint("gang-", g.id)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ai", Name: fmt.Sprint(name, "-", rank), UID: types.UID(fmt.Sprint(name, "-", rank)),
			Labels: map[string]string{wellknown.GangName: name},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus},
		}}},
	}
}

func (g *gang) manifest() *manifest.Set {
	job := manifest.Job{Kind: "Pod", Namespace: "ai", Name: fmt.Sprint("gang-", g.id), Pods: g.pods}
	set := &manifest.Set{Jobs: []manifest.Job{job}}
	for rank := range g.pods {
		set.Pods = append(set.Pods, g.pod(rank))
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
