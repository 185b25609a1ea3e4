package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/sharing/enforce"
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
	Keep(live []enforce.Limit) error
	// Choice returns the enforcers of new containers, Daemons the MPS daemons.
	Choice() (enforce.Choice, error)
	Daemons() []enforce.Daemon
}

// shares reconciles which container has which share, and writes it for schedulers and
// pods. It is for one goroutine.
type shares struct {
	*Options
	state *devicestate.State
	hami  *hamiNode
	// gpus are the free parts of the shared GPUs as they were last reconciled; nil before that.
	gpus        []quota.GPU
	mps         mpsWatch
	evictor     *apiserver.Evictor
	lastEvicted publish.Evicted

	drift    *prometheus.CounterVec
	rejected *prometheus.GaugeVec
	evicted  prometheus.Counter
}

func newShares(o *Options, state *devicestate.State) *shares {
	metrics := promauto.With(o.Registerer)
	t := &shares{
		Options: o, state: state, hami: newHAMiNode(o, state),
		mps: mpsWatch{}, evictor: apiserver.NewEvictor(o.API), lastEvicted: publish.Evicted{},
		drift: metrics.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_share_drift_total",
			Help: "Differences between what containers have of shared GPUs and what the checkpoint has, by kind.",
		}, []string{"kind"}),
		rejected: metrics.NewGaugeVec(prometheus.GaugeOpts{
			Name: "heddle_rejected_pods",
			Help: "Pods that wait for a share of a GPU, HCAs or IMEX channels that they do not get, by kind of reason.",
		}, []string{"kind"}),
		evicted: metrics.NewCounter(prometheus.CounterOpts{
			Name: "heddle_evicted_pods_total", Help: "Pods that were evicted because they were rejected for too long.",
		}),
	}
	for _, kind := range []string{
		devicestate.DriftLost, devicestate.DriftOvercommit,
		devicestate.DriftUnrecorded, devicestate.DriftAnnotation,
	} {
		t.drift.WithLabelValues(kind)
	}
	o.Registerer.MustRegister(mpsMetrics{o.Limiter})
	return t
}

// reconcile compares once, and writes what differs. It returns after how long at most to do it again, or most.
func (t *shares) reconcile(ctx context.Context, r *publish.Round, most time.Duration) time.Duration {
	defer func() { t.hami.update(r, t.gpus) }()
	annotated, _ := t.API.Annotation(wellknown.SharedGPUs)
	if !r.Sharing && annotated == "" && len(t.state.Rejections()) == 0 {
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
	t.report(ctx, usage.Drifts)
	if t.Limiter != nil {
		if err := t.Limiter.Keep(t.state.View().Limits()); err != nil {
			t.Log.WarnContext(ctx, "limiting shares failed", "err", err)
		}
	}
	t.count()
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
		drifts, again := annotatePods(ctx, t.Options, boundPods(t.state.View(), t.NodeName), pods, usage.Incomplete)
		t.report(ctx, drifts)
		if again {
			most = actRetry
		}
	}
	return most
}

// report makes an Event of each difference.
func (t *shares) report(ctx context.Context, drifts []devicestate.Drift) {
	for _, d := range drifts {
		t.drift.WithLabelValues(d.Kind).Inc()
		t.Log.WarnContext(ctx, "shares differ from the checkpoint", "kind", d.Kind, "message", d.Message)
		t.API.Record(health.NodeEvent{Warning: true, Reason: wellknown.EventSGPUDrift, Message: d.Message})
	}
}

// evictRejected evicts pods that have waited too long for a GPU or for HCAs, so that they
// are scheduled again.
func (t *shares) evictRejected(ctx context.Context, r *publish.Round, pods []*corev1.Pod) {
	now := time.Now()
	rejected := publish.Rejected(r.Inventory.Config, pods, t.state.Rejections(), t.lastEvicted, now)
	for i := range rejected {
		if t.evictor.Evict(ctx, apiserver.Ref(rejected[i].Pod), rejected[i].Event, rejected[i].Message) {
			t.evicted.Inc()
			t.lastEvicted.Add(now, &rejected[i])
		}
	}
}

// watchMPS reports daemons that died, do not start, or have recovered, on the Node and on
// the pods that were started with one that ran.
func (t *shares) watchMPS(ctx context.Context) {
	for _, c := range t.mps.changes(time.Now(), daemons(t.Limiter)) {
		if c.failed {
			t.Log.WarnContext(ctx, "MPS daemon failed", "gpu", c.daemon.GPU, "message", c.message)
			for pod, message := range c.onPods(t.state.View().Allocations()) {
				t.API.WarnPod(pod, wellknown.EventMPSFailed, message)
			}
		}
		t.API.Record(c.notice())
	}
}

// count sets the gauge of rejected pods.
func (t *shares) count() {
	for _, kind := range []string{
		allocate.RejectedRequest, allocate.RejectedAllocation, allocate.RejectedUnscheduled, allocate.RejectedFull,
		allocate.RejectedHCAs, allocate.RejectedChannels,
	} {
		t.rejected.WithLabelValues(kind).Set(0)
	}
	for _, r := range t.state.Rejections() {
		t.rejected.WithLabelValues(r.Kind).Inc()
	}
}
