// Package controller does what a scheduling cycle must not wait for.
//
// It feeds the gang cache from informers, applies the cache's effects to the
// framework, expires reservations, records Events, publishes the state of gangs as
// metrics and keeps PodGroup objects. It decides nothing about gangs.
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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/metrics"
	"github.com/heddle-dev/heddle/topo/scheduler/podgroup"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// expireEvery is how often deadlines are looked at.
const expireEvery = 500 * time.Millisecond

// Options of a Controller.
type Options struct {
	// Plugin is the name of the scheduler's plugin, for rejections.
	Plugin   string
	Handle   framework.Handle
	Cache    *gangcache.Cache
	GPUs     *sgpu.Scheduler
	Topology *topologyclient.Client
	Metrics  *metrics.Metrics
	// PodGroups keeps PodGroup objects of gangs that labels describe.
	PodGroups bool
	// Won is whether this process has won its leader election, and whether there is
	// one; nil if it always leads.
	Won func() (leads, known bool)
	Log *slog.Logger
}

// Controller runs in the background.
type Controller struct {
	Options
	logr   logr.Logger
	client dynamic.Interface
	leader leader
	// pods is the handler that has seen all pods once it has synced.
	pods cache.ResourceEventHandlerRegistration
	// searched counts the API groups of PodGroups that were looked for.
	searched atomic.Int32
}

// New registers the informers' handlers; Run does the rest.
func New(o Options) (*Controller, error) {
	c := &Controller{Options: o, logr: logr.FromSlogHandler(o.Log.Handler()), leader: leader{won: o.Won}}
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

// Scheduling is called by scheduling cycles: only the leader has any.
func (c *Controller) Scheduling() { c.leader.leads.Store(true) }

// Run blocks until the context ends.
func (c *Controller) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { c.Topology.Run(ctx) })
	if c.client != nil {
		for _, group := range gangcache.APIGroups() {
			tasks.Go(func() { c.followPodGroups(ctx, group) })
		}
	}
	expire, publish := time.NewTicker(expireEvery), time.NewTicker(podgroup.Interval)
	defer expire.Stop()
	defer publish.Stop()
	tree, changed := c.Topology.Current()
	fresh := tree.Fresh(time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Cache.Changed():
			c.apply()
		case <-expire.C:
			// A gang that may be placed without a tree waits no longer for its level.
			if tree, _ = c.Topology.Current(); fresh && !tree.Fresh(time.Now()) {
				fresh = false
				c.Cache.RetryAll()
			}
			c.expire(time.Now())
		case now := <-publish.C:
			c.publish(now)
		case <-changed:
			tree, changed = c.Topology.Current()
			fresh = tree.Fresh(time.Now())
			c.Cache.RetryAll()
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

func (c *Controller) expire(now time.Time) {
	c.Cache.Expire()
	var waiting []types.UID
	c.Handle.IterateOverWaitingPods(func(w framework.WaitingPod) { waiting = append(waiting, w.GetPod().UID) })
	c.Cache.RejectStrays(waiting)
	c.leader.update(now, c.pods.HasSynced())
	if !c.leader.leading() {
		return
	}
	for _, e := range c.Cache.Events() {
		c.Handle.EventRecorder().WithLogger(c.logr).Eventf(
			e.Pod, nil, corev1.EventTypeWarning, e.Reason, "Scheduling", "%s", e.Message)
	}
}

// publish sets the gauges: in a replica that waits those of the topology tree alone.
func (c *Controller) publish(now time.Time) {
	if !c.Metrics.Registered() {
		return
	}
	if c.Topology.Configured() {
		tree, _ := c.Topology.Current()
		c.Metrics.SetTopology(tree.Fresh(now), tree.Confirmed, now)
	}
	if !c.leader.leading() {
		return
	}
	states := map[string]int{}
	for _, phase := range gang.Phases() {
		states[string(phase)] = 0
	}
	var rejected []metrics.Rejection
	for _, s := range c.Cache.Snapshots() {
		if !s.Own {
			continue
		}
		states[string(gang.StateOf(s.Pods, s.MinMember, c.nodeLost).Phase)]++
		if !s.RejectedSince.IsZero() {
			rejected = append(rejected, metrics.Rejection{
				Namespace: s.Key.Namespace, Name: s.Key.Name, For: now.Sub(s.RejectedSince),
			})
		}
	}
	slices.SortFunc(rejected, func(a, b metrics.Rejection) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	c.Metrics.SetGangs(states, rejected)
}

// nodeLost reports whether a node is not ready, or gone.
func (c *Controller) nodeLost(name string) bool {
	node, err := c.Handle.SharedInformerFactory().Core().V1().Nodes().Lister().Get(name)
	if err != nil {
		return true
	}
	for i := range node.Status.Conditions {
		if condition := &node.Status.Conditions[i]; condition.Type == corev1.NodeReady {
			return condition.Status != corev1.ConditionTrue
		}
	}
	return false
}

const (
	// electionEvery is how often the election is asked.
	electionEvery = 2 * time.Second
	// noElectionAfter is how long after the pods have synced an election is known, if
	// there is one.
	noElectionAfter = 20 * time.Second
)

// leader is whether this process schedules. The framework creates plugins, fills
// caches and calls PreEnqueue in replicas that wait as well; only the leader may
// write. A leader leads until it ends: kube-scheduler exits when it loses its lease.
type leader struct {
	won   func() (leads, known bool)
	leads atomic.Bool
	// asked is when the election was asked last, synced when the pods had synced.
	asked, synced time.Time
}

func (l *leader) leading() bool { return l.won == nil || l.leads.Load() }

func (l *leader) update(now time.Time, synced bool) {
	if l.leading() || now.Sub(l.asked) < electionEvery {
		return
	}
	l.asked = now
	if l.synced.IsZero() && synced {
		l.synced = now
	}
	leads, known := l.won()
	if leads || !known && !l.synced.IsZero() && now.Sub(l.synced) >= noElectionAfter {
		l.leads.Store(true)
	}
}
