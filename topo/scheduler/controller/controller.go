// Package controller does what a scheduling cycle must not wait for.
//
// It feeds the gang cache from informers, applies the cache's effects to the
// framework, expires reservations, records Events, publishes the state of gangs as
// metrics, and keeps the PodGroup objects of gangs that labels describe. It decides
// nothing about gangs, and writes no object of another creator.
package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
	"github.com/heddle-dev/heddle/topo/suspect"
)

const (
	// expireEvery is the interval between checks of deadlines.
	expireEvery = 500 * time.Millisecond
	// publishEvery is the time between two values of a gauge, between two looks at the
	// election, and between two writes of one object.
	publishEvery = 2 * time.Second
	// noElectionAfter is the time after the sync of the pods within which an election shows, if
	// there is one.
	noElectionAfter = 20 * time.Second
	// maxRejected bounds the gangs that are labels of a metric.
	maxRejected = 10
)

// Options of a Controller.
type Options struct {
	// Plugin is the name of the scheduler's plugin, for rejections.
	Plugin   string
	Handle   framework.Handle
	Cache    *gangcache.Cache
	Topology *topologyclient.Client
	// Suspects is told where gangs fail.
	Suspects *suspect.Memory
	// PodGroups keeps PodGroup objects of gangs that labels describe.
	PodGroups bool
	// Elections has the metric of the scheduler's leader election; nil if this process
	// always leads.
	Elections prometheus.Gatherer
	Log       *slog.Logger
}

// Controller runs in the background.
type Controller struct {
	Options
	// Leads reports that this process schedules, which a scheduling cycle proves. The
	// framework creates plugins, fills caches and calls PreEnqueue in replicas that
	// wait as well; only the leader may write. A leader leads until it ends:
	// kube-scheduler exits when it loses its lease.
	Leads atomic.Bool

	logr   logr.Logger
	client dynamic.Interface
	// pods is the handler that has seen all pods once it has synced.
	pods cache.ResourceEventHandlerRegistration
}

// New registers the informers' handlers; Run does the rest.
func New(o Options) (*Controller, error) {
	c := &Controller{Options: o, logr: logr.FromSlogHandler(o.Log.Handler())}
	c.Leads.Store(o.Elections == nil)
	if config := o.Handle.KubeConfig(); config != nil {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("create client for podgroups: %w", err)
		}
		c.client = client
	}
	if err := c.watch(); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return c, nil
}

// Run blocks until the context ends. It does nothing before all pods are known: what
// was not seen yet is not missing.
func (c *Controller) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { c.Topology.Run(ctx) })
	tasks.Go(func() { c.followEnded(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced) {
		return
	}
	if c.client != nil {
		tasks.Go(func() { c.followPodGroups(ctx) })
	}
	expire, publish, synced := time.NewTicker(expireEvery), time.NewTicker(publishEvery), time.Now()
	defer expire.Stop()
	defer publish.Stop()
	var planned uint64 // The tree that gangs are placed by; 0 for none.
	awaited := c.Topology.Awaited(synced)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Cache.Changed:
			c.apply()
		case now := <-expire.C:
			tree, _ := c.Topology.Current()
			if !tree.Fresh(now) {
				// A gang that may be placed without a tree waits no longer for its level.
				tree.Generation = 0
			}
			waits := c.Topology.Awaited(now)
			if tree.Generation != planned || waits != awaited {
				planned, awaited = tree.Generation, waits
				c.Suspects.Group(tree.Groups)
				c.Cache.RetryAll()
			}
			c.expire()
		case now := <-publish.C:
			c.elect(now.Sub(synced))
			c.publish(now)
		}
	}
}

// apply does what the gang cache decided.
func (c *Controller) apply() {
	effects := c.Cache.Effects()
	for _, uid := range effects.Allow {
		if w := c.Handle.GetWaitingPod(uid); w != nil {
			w.Allow(c.Plugin)
		}
	}
	for uid, reason := range effects.Reject {
		if w := c.Handle.GetWaitingPod(uid); w != nil {
			w.Reject(c.Plugin, reason)
		}
	}
	if len(effects.Activate) > 0 {
		c.Handle.Activate(c.logr, effects.Activate)
	}
}

func (c *Controller) expire() {
	var waiting []types.UID
	c.Handle.IterateOverWaitingPods(func(w framework.WaitingPod) { waiting = append(waiting, w.GetPod().UID) })
	c.Cache.Expire(waiting)
	if !c.Leads.Load() {
		return
	}
	for _, e := range c.Cache.Events() {
		c.Handle.EventRecorder().WithLogger(c.logr).Eventf(
			e.Pod, nil, corev1.EventTypeWarning, e.Reason, "Scheduling", "%s", e.Message)
	}
}

// publish sets the gauges. A waiting replica sets only the gauges of the topology tree.
func (c *Controller) publish(now time.Time) {
	m := c.Cache.Metrics
	if c.Topology.Configured() {
		tree, _ := c.Topology.Current()
		m.TreeFresh.WithLabelValues().Set(0)
		if tree.Fresh(now) {
			m.TreeFresh.WithLabelValues().Set(1)
		}
		if !tree.Confirmed.IsZero() {
			m.TreeAge.WithLabelValues().Set(now.Sub(tree.Confirmed).Seconds())
		}
	}
	if !c.Leads.Load() {
		return
	}
	states := map[gang.Phase]int{}
	var rejected []gangcache.Gang
	m.Held.Reset()
	for _, g := range c.Cache.Gangs() {
		if c.foreign(&g) {
			continue
		}
		states[c.stateOf(&g).Phase]++
		if !g.RejectedSince.IsZero() {
			rejected = append(rejected, g)
		}
		if g.Held > 0 {
			m.Held.WithLabelValues(g.Key.Namespace, g.Key.Name).Set(float64(g.Held))
		}
	}
	for _, phase := range gang.Phases() {
		m.Gangs.WithLabelValues(string(phase)).Set(float64(states[phase]))
	}
	slices.SortFunc(rejected, func(a, b gangcache.Gang) int {
		return cmp.Or(a.RejectedSince.Compare(b.RejectedSince), cmp.Compare(a.Key.String(), b.Key.String()))
	})
	m.Rejected.Reset()
	for _, g := range rejected[:min(len(rejected), maxRejected)] {
		m.Rejected.WithLabelValues(g.Key.Namespace, g.Key.Name).Set(now.Sub(g.RejectedSince).Seconds())
	}
}

// nodeLost reports whether a node is not ready, or gone, and since when.
func (c *Controller) nodeLost(name string) (time.Time, bool) {
	node, err := c.Handle.SharedInformerFactory().Core().V1().Nodes().Lister().Get(name)
	if err != nil {
		return time.Time{}, true
	}
	if _, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady); ready != nil {
		return ready.LastTransitionTime.Time, ready.Status != corev1.ConditionTrue
	}
	return time.Time{}, false
}

// elect makes this process the leader if it has won the election, or if no election shows within
// noElectionAfter of the sync of the pods.
func (c *Controller) elect(synced time.Duration) {
	if c.Leads.Load() {
		return
	}
	if won, known := Won(c.Elections); won || !known && synced >= noElectionAfter {
		c.Leads.Store(true)
	}
}

// Won reports whether this process has won kube-scheduler's leader election, and whether an
// election takes place. kube-scheduler does not pass that to plugins; its metric shows it once the
// election begins.
func Won(metrics prometheus.Gatherer) (won, known bool) {
	// An error comes with the metrics that could be gathered.
	families, _ := metrics.Gather()
	for _, family := range families {
		if family.GetName() != "leader_election_master_status" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "name" && label.GetValue() == "kube-scheduler" {
					return metric.GetGauge().GetValue() == 1, true
				}
			}
		}
	}
	return false, false
}
