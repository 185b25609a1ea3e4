package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

const (
	// reconcileEvery is the longest time between two reconciliations, and
	// reconcilePause the shortest: many pods start at once.
	reconcileEvery = 10 * time.Second
	reconcilePause = time.Second
)

// Limiter makes the limits of shares hold; see [enforce.Limiter].
type Limiter interface { //nolint:interfacebloat // What the agent uses of enforce.Limiter, in one.
	devicestate.Limiter
	// Configure takes the node and its configuration as they are now. Until the
	// first call, and after one that failed, no container gets limits or starts.
	Configure(m *machine.Machine, c *config.NodeConfig) error
	// Keep takes all containers that have shares.
	Keep(ctx context.Context, live []enforce.Limit) error
	// Choice is what new containers get, Daemons are those of MPS.
	Choice() (enforce.Choice, error)
	Daemons() []enforce.Daemon
}

// shares reconciles which container has which share, and writes it for schedulers
// and pods, apart from the loop.
type shares struct {
	*core
	hami *hamiNode
	// woken asks for a reconciliation.
	woken        notify.Signal
	expectations expectations
	evictions    *rate.Limiter

	// What follows is run's alone: what was written to the Node, and when; to pods,
	// by UID; what was reported of MPS daemons; the last evicted pod of each controller.
	node        string
	nodeAt      time.Time
	annotated   map[types.UID]writtenPod
	mps         mpsWatch
	lastEvicted map[types.UID]evictedPod

	drift    *prometheus.CounterVec
	rejected *prometheus.GaugeVec
	evicted  prometheus.Counter
}

func newShares(c *core, h *hamiNode) *shares {
	t := &shares{
		core: c, hami: h, woken: notify.New(), annotated: map[types.UID]writtenPod{}, mps: mpsWatch{},
		lastEvicted: map[types.UID]evictedPod{},
		evictions:   rate.NewLimiter(rate.Every(evictEvery), evictBurst),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_share_drift_total",
			Help: "Differences between what containers have of shared GPUs and what the checkpoint has, by kind.",
		}, []string{"kind"}),
		rejected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "heddle_rejected_pods",
			Help: "Pods that wait for a share of a GPU, HCAs or IMEX channels that they do not get, by kind of reason.",
		}, []string{"kind"}),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_evicted_pods_total", Help: "Pods that were evicted because they were rejected for too long.",
		}),
	}
	for _, kind := range []string{
		devicestate.DriftLost, devicestate.DriftOvercommit,
		devicestate.DriftUnrecorded, devicestate.DriftAnnotation,
	} {
		t.drift.WithLabelValues(kind)
	}
	return t
}

// run reconciles until ctx ends.
func (t *shares) run(ctx context.Context) error {
	ticker := time.NewTicker(reconcileEvery)
	defer ticker.Stop()
	for {
		_, pods, _ := t.API.Pods()
		t.reconcile(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconcilePause):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.woken:
		case <-pods:
		case <-ticker.C:
		}
	}
}

// reconcile compares once, and writes what differs.
func (t *shares) reconcile(ctx context.Context) {
	if !t.sharing() && t.node == "" && !t.nodeAnnotated() && len(t.state.Rejections()) == 0 {
		return
	}
	if t.Limiter != nil {
		// The report has the error, and the containers that are rejected.
		_ = t.Limiter.Configure(t.machine(), t.config())
	}
	t.watchMPS(ctx, time.Now())
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	// Annotations of pods are corrected only after they were read: one may be all
	// that is left of what the containers have.
	_, _, listed := t.API.Pods()
	usage, err := t.state.Reconcile(ctx)
	if err != nil {
		t.Log.DebugContext(ctx, "shares are not known", "err", err)
		return
	}
	t.hami.setGPUs(usage.GPUs)
	for _, d := range usage.Drifts {
		t.drifted(ctx, d)
	}
	if t.Limiter != nil {
		if err := t.Limiter.Keep(ctx, t.state.View().Limits()); err != nil {
			t.Log.WarnContext(ctx, "limiting shares failed", "err", err)
		}
	}
	t.count()
	if !t.API.Online() {
		return
	}
	t.annotateNode(ctx, usage.GPUs)
	if listed {
		pods, _, _ := t.API.Pods()
		t.evictRejected(ctx, pods, time.Now())
		t.annotatePods(ctx, pods, usage.Incomplete)
	}
}

// nodeAnnotated reports whether the Node has an annotation of shared GPUs, which may
// be of an earlier process.
func (t *shares) nodeAnnotated() bool {
	if !t.nodeAt.IsZero() {
		return false
	}
	text, _ := t.API.Annotation(wellknown.SharedGPUs)
	return text != ""
}

func (t *shares) drifted(ctx context.Context, d devicestate.Drift) {
	t.drift.WithLabelValues(d.Kind).Inc()
	t.Log.WarnContext(ctx, "shares differ from the checkpoint", "kind", d.Kind, "message", d.Message)
	t.API.Record(health.NodeEvent{Warning: true, Reason: wellknown.EventSGPUDrift, Message: d.Message})
}

// count sets the gauge of rejected pods.
func (t *shares) count() {
	for _, kind := range []string{
		allocate.RejectedRequest, allocate.RejectedAllocation, allocate.RejectedUnscheduled, allocate.RejectedFull,
		allocate.RejectedNUMA, allocate.RejectedHCAs, allocate.RejectedChannels,
	} {
		t.rejected.WithLabelValues(kind).Set(0)
	}
	for _, r := range t.state.Rejections() {
		t.rejected.WithLabelValues(r.Kind).Inc()
	}
}

// annotateNode writes [wellknown.SharedGPUs] if it differs from the last time; a Node
// without shared GPUs has none.
func (t *shares) annotateNode(ctx context.Context, gpus []quota.GPU) {
	text := ""
	if len(gpus) > 0 {
		text = quota.Publish(gpus).String()
	}
	if text == t.node && (text == "" || time.Since(t.nodeAt) < publishAgain) && !t.nodeAnnotated() {
		return
	}
	if err := t.API.AnnotateNode(ctx, "", map[string]*string{wellknown.SharedGPUs: valueOrNone(text)}); err != nil {
		t.Log.WarnContext(ctx, "annotating the node with shared GPUs failed", "err", err)
		t.woken.Notify()
		return
	}
	t.node, t.nodeAt = text, time.Now()
}
