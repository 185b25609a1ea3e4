package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// reconcileTimeout bounds one reconciliation.
const reconcileTimeout = 10 * time.Second

// Limiter makes the limits of shares hold; see [enforce.Limiter].
type Limiter interface { //nolint:interfacebloat // What the agent uses of enforce.Limiter, in one.
	devicestate.Limiter
	// Configure takes the node and its configuration as they are now. Until the first
	// call, and after one that failed, no container gets limits or starts.
	Configure(m *machine.Machine, c *config.NodeConfig) error
	// Keep takes all containers that have shares.
	Keep(live func() []enforce.Limit) error
	// Choice returns the enforcers of new containers, Daemons the MPS daemons.
	Choice() (enforce.Choice, error)
	Daemons() []enforce.Daemon
}

// shares reconciles which container has which share, and writes it for schedulers and
// pods. It is for one goroutine.
type shares struct {
	*Options
	state *devicestate.State
	// hami is nil without an API server.
	hami *hami.Plugin
	// gpus are the free parts of the shared GPUs as they were last reconciled; nil before that.
	gpus []quota.GPU
	mps  mpsWatch

	drift   *prometheus.CounterVec
	evicted prometheus.Counter
}

func newShares(o *Options, state *devicestate.State) *shares {
	metrics := promauto.With(o.Registerer)
	t := &shares{
		Options: o, state: state, mps: mpsWatch{},
		drift: metrics.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_share_drift_total",
			Help: "Differences between what containers have of shared GPUs and what the checkpoint has, by kind.",
		}, []string{"kind"}),
		evicted: metrics.NewCounter(prometheus.CounterOpts{
			Name: "heddle_evicted_pods_total", Help: "Pods that were evicted because they were rejected for too long.",
		}),
	}
	for _, kind := range []string{devicestate.DriftOvercommit, devicestate.DriftUnrecorded} {
		t.drift.WithLabelValues(kind)
	}
	if o.API.Online() {
		t.hami = hami.New(hami.Options{Node: o.NodeName, Watched: o.API, API: o.API, Log: o.Log})
	}
	return t
}

// offer returns the state that HAMi's bridge publishes.
func (t *shares) offer(r *publish.Round) hami.State {
	c, m, view := r.Inventory.Config, r.Inventory.Machine, t.state.View()
	list := r.Served[c.Resources.SGPU].Status
	offered := hami.State{
		Enabled: c.SGPU.HAMi == config.HAMiOn, Resource: c.Resources.SGPU, Open: list.Registered && list.Streams > 0,
		Prepared: make(map[types.UID]bool),
	}
	for _, rejected := range t.state.Rejections() {
		offered.Prepared[types.UID(rejected.UID)] = false
	}
	for _, b := range view.Allocations() {
		if b.By == allocation.ByHAMi {
			offered.Prepared[types.UID(b.UID)] = true
		}
	}
	if t.gpus == nil {
		return offered
	}
	others := view.GPUsWithout(allocation.ByHAMi)
	for _, one := range t.gpus {
		g := hami.GPU{GPU: one}
		if other := shared(others, one.UUID); other != nil {
			g.Other = *other
		}
		if at := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == one.UUID }); at >= 0 {
			g.BDF, g.Model = m.GPUs[at].PCI, m.GPUs[at].Product
		}
		offered.GPUs = append(offered.GPUs, g)
	}
	for i := range m.GPUs {
		offered.Local = append(offered.Local, m.GPUs[i].UUID)
	}
	return offered
}

// reconcile compares once, and writes what differs. It returns after how long at most to do it again, or most.
func (t *shares) reconcile(ctx context.Context, r *publish.Round, most time.Duration) time.Duration {
	defer func() {
		if t.hami != nil {
			t.hami.Set(t.offer(r))
		}
	}()
	annotated, _ := t.API.Annotation(wellknown.SharedGPUs)
	claims := r.Inventory.Config.UsesClaims() // They may be of shares.
	if !r.Sharing && !claims && annotated == "" && len(t.state.Rejections()) == 0 {
		return most
	}
	if t.Limiter != nil {
		// The report has the error, and the containers that are rejected.
		_ = t.Limiter.Configure(r.Inventory.Machine, r.Inventory.Config)
	}
	t.watchMPS(ctx)
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	// Annotations of pods are corrected only after they were read: an annotation may be the only
	// record of a container's devices.
	_, _, listed := t.API.Pods()
	usage, err := t.state.Reconcile(ctx)
	if err != nil {
		t.Log.DebugContext(ctx, "shares are not known", "err", err)
		return most
	}
	t.gpus = usage.GPUs
	for _, d := range usage.Drifts {
		t.drift.WithLabelValues(d.Kind).Inc()
		t.Log.WarnContext(ctx, "shares differ from the checkpoint", "kind", d.Kind, "message", d.Message)
		t.API.Record(health.NodeEvent{Warning: true, Reason: wellknown.EventSGPUDrift, Message: d.Message})
	}
	if t.Limiter != nil {
		if err := t.Limiter.Keep(func() []enforce.Limit { return t.state.View().Limits() }); err != nil {
			t.Log.WarnContext(ctx, "limiting shares failed", "err", err)
		}
	}
	text := ""
	if len(usage.GPUs) > 0 {
		text = quota.Publish(usage.GPUs).String()
	}
	if err := t.API.ShowAnnotations(ctx, map[string]string{wellknown.SharedGPUs: text}); err != nil {
		t.Log.WarnContext(ctx, "annotating the node with shared GPUs failed", "err", err)
		most = actRetry
	}
	if listed {
		pods, _, _ := t.API.Pods()
		t.evictRejected(ctx, r, pods)
		if annotatePods(ctx, t.Options, boundPods(t.state.View(), t.NodeName), pods, usage.Incomplete) {
			most = actRetry
		}
	}
	return most
}

// evictRejected evicts pods that have waited too long for a GPU or for HCAs, so that they
// are scheduled again.
func (t *shares) evictRejected(ctx context.Context, r *publish.Round, pods []*corev1.Pod) {
	for _, p := range publish.Rejected(r.Inventory.Config, pods, t.state.Rejections(), time.Now()) {
		if t.API.EvictFor(ctx, apiserver.Ref(p.Pod), p.Event, p.Message) {
			t.evicted.Inc()
		}
	}
}

// watchMPS reports daemons that died or do not start, on the Node and on the pods that were started with one that
// ran.
func (t *shares) watchMPS(ctx context.Context) {
	for _, d := range t.mps.failures(time.Now(), daemons(t.Limiter)) {
		message := mpsFailure(d)
		t.Log.WarnContext(ctx, "MPS daemon failed", "gpu", d.GPU, "message", message)
		t.API.Record(health.NodeEvent{Warning: true, Reason: wellknown.EventMPSFailed, Message: message})
		for _, b := range t.state.View().Allocations() {
			uses := slices.ContainsFunc(b.Shares, func(s allocation.Share) bool { return s.UUID == d.GPU })
			if uses && b.Enforced.Uses(config.EnforceMPS) && !d.LastRunning.IsZero() {
				pod := kubelet.Pod{Namespace: b.Namespace, Name: b.Pod, UID: b.UID}
				t.API.WarnPod(pod, wellknown.EventMPSFailed, "container "+b.Container+": "+message)
			}
		}
	}
}

// daemons returns the MPS daemons of a Limiter, which may be nil.
func daemons(l Limiter) []enforce.Daemon {
	if l == nil {
		return nil
	}
	return l.Daemons()
}

// mpsSteady is the time that a daemon must run after a failure until the next one is reported, so that a daemon that
// dies every few seconds is reported once.
const mpsSteady = time.Minute

// mpsWatch has the GPUs, by UUID, with a daemon that failed.
type mpsWatch map[string]bool

// failures returns the daemons that failed since the last call. A daemon that died and runs again is known by its
// restarts.
func (w mpsWatch) failures(now time.Time, all []enforce.Daemon) (failed []*enforce.Daemon) {
	last := maps.Clone(w)
	clear(w) // Of those that no container uses any more.
	for i := range all {
		d := &all[i]
		if d.Reason == "" && (d.Restarts == 0 || d.State == enforce.Running && now.Sub(d.Since) >= mpsSteady) {
			continue
		}
		if w[d.GPU] = true; !last[d.GPU] {
			failed = append(failed, d)
		}
	}
	return failed
}

// mpsFailure describes the fault of a daemon and its consequence.
func mpsFailure(d *enforce.Daemon) string {
	consequence := "failed and is started again; CUDA programs that used it must be started again too"
	switch {
	case d.Restarts == 0 || d.State == enforce.Running && d.Reason != "":
		consequence = "does not take the limits of its containers, and those that need them wait"
	case d.LastRunning.IsZero():
		consequence = "does not start, and containers that need it wait"
	}
	return fmt.Sprintf("the MPS daemon of GPU %d (%s) %s: %s", d.Index, d.GPU, consequence, cmp.Or(d.Reason, d.LastError))
}
