//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
)

// The cluster of the rates: groups of rateSize nodes. rateGangs gangs that fill
// a group each come at once, a quarter of what there is room for.
const (
	rateGroups = 256
	rateSize   = 18
	rateGangs  = 64
	rateRounds = 3
)

// rates lets heddle-scheduler as the chart configures it, kube-scheduler, and
// kube-scheduler without its default spreading bind the same pods, in turns.
// Without spreading it takes one pod's nodes for the next that is equal, which is
// the fastest that it can be.
func rates(ctx context.Context, log io.Writer) (rows []row, err error) {
	r, err := newRace(ctx, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	tree := httptest.NewServer(serveTree(rateTree()))
	defer tree.Close()
	contenders, err := r.rateContenders(ctx, tree.URL)
	if err != nil {
		return nil, err
	}
	if err := r.fillRates(ctx); err != nil {
		return nil, err
	}
	gangs, err := r.rateRounds(ctx, contenders, ratePods(true))
	if err != nil {
		return nil, err
	}
	single, err := r.rateRounds(ctx, contenders[:2], ratePods(false))
	if err != nil {
		return nil, err
	}
	how := fmt.Sprintf("real API server, the chart's values, %d nodes, %d pods, median of %d turns",
		rateGroups*rateSize, rateGangs*rateSize, rateRounds)
	return []row{
		atLeast("gangs of 18 as installed, to kube-scheduler", gangs[1].ratio, 1.2, "x", how),
		atLeast("the same, to kube-scheduler without spreading", gangs[2].ratio, 0.9, "x", how),
		atLeast("the same, pods a second", gangs[0].pods, 100, "", how),
		atMost("the same, groups per gang", gangs[0].groups, 1, "", how),
		atLeast("pods with GPUs in no gang, to kube-scheduler", single[1].ratio, 0.97, "x", how),
	}, nil
}

// rate is what a contender did, medians of its turns: pods bound a second, the
// first contender's to its own, and groups per gang.
type rate struct{ pods, ratio, groups float64 }

func (r *race) rateRounds(ctx context.Context, contenders []contender, pods []*corev1.Pod) ([]rate, error) {
	all := make([]struct{ pods, ratios, groups []float64 }, len(contenders))
	for range rateRounds {
		for i, c := range contenders {
			perSecond, bound, err := r.round(ctx, c, pods)
			if err != nil {
				return nil, err
			}
			// heddle-scheduler made them; the next round's gangs have the same names.
			if _, err := r.cluster.Kubectl(ctx, "delete", "podgroups.scheduling.x-k8s.io", "--all"); err != nil {
				return nil, err
			}
			a := &all[i]
			a.pods, a.groups = append(a.pods, perSecond), append(a.groups, groupsPerGang(bound))
			first := all[0].pods
			a.ratios = append(a.ratios, first[len(first)-1]/perSecond)
		}
	}
	out := make([]rate, len(contenders))
	for i := range all {
		out[i] = rate{median(all[i].pods), median(all[i].ratios), median(all[i].groups)}
		fmt.Fprintf(r.log, "%s: %.0f pods/s, %.2f groups per gang; heddle-scheduler %.2f times that\n",
			contenders[i].name, out[i].pods, out[i].groups, out[i].ratio)
	}
	return out, nil
}

// rateContenders are heddle-scheduler, kube-scheduler, and that without spreading.
func (r *race) rateContenders(ctx context.Context, tree string) ([]contender, error) {
	chart := func(file string) (string, error) {
		return r.installer.Helm(ctx, r.cluster, "template", "x", "deploy/helm/heddle", "-n", raceNamespace,
			"-s", "templates/scheduler/"+file, "--set", "gpuScheduler.enabled=true",
			"--set", "gpuScheduler.map.address="+tree+"/node_group")
	}
	kind, err := chart("podgroups.yaml")
	if err != nil {
		return nil, err
	}
	if err := r.cluster.Apply(ctx, kind); err != nil {
		return nil, err
	}
	text, err := chart("config.yaml")
	if err != nil {
		return nil, err
	}
	var object struct {
		Data map[string]string `yaml:"data"`
	}
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		return nil, fmt.Errorf("the chart's ConfigMap: %w", err)
	}
	config := object.Data["scheduler.yaml"]
	heddle, err := r.contender(schedulerBinary, config, nil)
	if err != nil {
		return nil, err
	}
	deployment, err := chart("deployment.yaml")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(deployment) {
		if flag, ok := strings.CutPrefix(strings.TrimSpace(line), "- --feature-gates="); ok {
			heddle.flags = append(heddle.flags, "--feature-gates="+strings.Trim(flag, `"`))
		}
	}
	plain, err := r.contender("plain", config, map[string]any{})
	if err != nil {
		return nil, err
	}
	batching, err := r.contender("batching", config, map[string]any{"pluginConfig": []any{
		map[string]any{"name": "PodTopologySpread", "args": map[string]any{"defaultingType": "List"}},
	}})
	return []contender{heddle, plain, batching}, err
}

// rateNode is the name of a node, which begins with its group's.
func rateNode(group, node int) string { return fmt.Sprintf("n%03d-%02d", group, node) }

// serveTree answers as topo-master does, which sends a tree that the scheduler has no second time.
func serveTree(tree string) http.HandlerFunc {
	const tag = `"1"`
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, tree) // The scheduler asks again.
	}
}

func rateTree() string {
	groups := make([]string, rateGroups)
	for g := range groups {
		nodes := make([]string, rateSize)
		for n := range nodes {
			nodes[n] = fmt.Sprintf(`{"name":%q,"kind":"node","status":"Ready"}`, rateNode(g, n))
		}
		groups[g] = fmt.Sprintf(`{"name":"leaf-%03d","kind":"leaf","child":[%s],"status":"Ready"}`,
			g, strings.Join(nodes, ","))
	}
	return "[" + strings.Join(groups, ",") + "]"
}

func (r *race) fillRates(ctx context.Context) error {
	begin := time.Now()
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(raceWriters)
	for g := range rateGroups {
		for n := range rateSize {
			group.Go(func() error {
				return r.cluster.AddSimulatedNode(within, cluster.SimulatedNode{
					Name: rateNode(g, n), Capacity: map[string]string{wellknown.DefaultDomains().GPUResource(): "8"},
				})
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	fmt.Fprintf(r.log, "%d nodes Ready after %.0f s\n", rateGroups*rateSize, time.Since(begin).Seconds())
	return nil
}

func ratePods(gangs bool) []*corev1.Pod {
	limits := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"),
		corev1.ResourceName(wellknown.DefaultDomains().GPUResource()): *resource.NewQuantity(8, resource.DecimalSI),
	}
	var pods []*corev1.Pod
	for g := range rateGangs {
		var labels map[string]string
		if gangs {
			labels = map[string]string{
				"pod-group.scheduling.sigs.k8s.io/name":          fmt.Sprintf("g%d", g),
				"pod-group.scheduling.sigs.k8s.io/min-available": strconv.Itoa(rateSize),
			}
		}
		for i := range rateSize {
			pods = append(pods, racePod(fmt.Sprintf("g%d-%d", g, i), labels, limits))
		}
	}
	return pods
}

// groupsPerGang is the mean over pods' names' first part.
func groupsPerGang(pods map[string]*corev1.Pod) float64 {
	in := map[string]bool{}
	for name, pod := range pods {
		gang, _, _ := strings.Cut(name, "-")
		group, _, _ := strings.Cut(pod.Spec.NodeName, "-")
		in[gang+" "+group] = true
	}
	return float64(len(in)) / rateGangs
}
