package agent

import (
	"context"
	"sync/atomic"
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
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// ReasonDrift is the Event on the Node when who has which share is not what it
// should be.
const ReasonDrift = "SGPUDrift"

const (
	// tenancyEvery is the longest time between two looks at who has what, and
	// tenancyPause the shortest: many pods start at once.
	tenancyEvery = 10 * time.Second
	tenancyPause = time.Second
)

// Limiter makes the limits of shares hold; see [enforce.Limiter].
type Limiter interface {
	devicestate.Limiter
	// Configure takes the node and its configuration as they are now. Until the
	// first call, and after one that failed, no container gets limits or starts.
	Configure(m *machine.Machine, c *config.NodeConfig) error
	// Keep tells all containers that have shares.
	Keep(ctx context.Context, live []enforce.Limit) error
}

// tenancy tells schedulers and pods who has which share, apart from the loop
// that tells the kubelet, and looks whether it is so.
type tenancy struct {
	agent *Agent
	// woken has a capacity of one.
	woken chan struct{}
	// cards are those of the last look.
	cards     atomic.Pointer[[]quota.GPU]
	guesses   guesses
	evictions *rate.Limiter

	// What follows is run's alone: what the Node was told, and when; what pods
	// were told, by UID; what was told of MPS daemons.
	node   string
	nodeAt time.Time
	told   map[types.UID]toldPod
	mps    mpsWatch

	drift   *prometheus.CounterVec
	refused *prometheus.GaugeVec
	evicted prometheus.Counter
}

func newTenancy(a *Agent) *tenancy {
	t := &tenancy{
		agent: a, woken: make(chan struct{}, 1), told: map[types.UID]toldPod{}, mps: mpsWatch{},
		evictions: rate.NewLimiter(rate.Every(evictEvery), evictBurst),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_sgpu_drift_total",
			Help: "Differences between what containers have of shared GPUs and what was on record, by kind.",
		}, []string{"kind"}),
		refused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "heddle_sgpu_refused_pods",
			Help: "Pods that wait for a share of a GPU that they do not get, by kind of reason.",
		}, []string{"kind"}),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_sgpu_evicted_total", Help: "Pods that were evicted because they were refused for too long.",
		}),
	}
	for _, kind := range []string{
		devicestate.DriftRecord, devicestate.DriftLost, devicestate.DriftOvercommit, devicestate.DriftUnrecorded, devicestate.DriftAnnotation,
	} {
		t.drift.WithLabelValues(kind)
	}
	a.Registerer.MustRegister(t.drift, t.refused, t.evicted)
	return t
}

// wake tells that somebody got or lost a share. It returns at once.
func (t *tenancy) wake() { signal(t.woken) }

// run looks until ctx ends.
func (t *tenancy) run(ctx context.Context) error {
	ticker := time.NewTicker(tenancyEvery)
	defer ticker.Stop()
	for {
		_, pods, _ := t.agent.API.Pods()
		t.look(ctx)
		pause := time.NewTimer(tenancyPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
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

// look compares once, and tells what differs.
func (t *tenancy) look(ctx context.Context) {
	a := t.agent
	if !a.shares() && t.node == "" && !t.nodeSays() {
		return
	}
	if a.Limiter != nil {
		// The report has the error, and those who are refused.
		_ = a.Limiter.Configure(a.machine(), a.config())
	}
	t.watchMPS(ctx, time.Now())
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	// What pods say of themselves is put right only after it was looked at: it may
	// be all that is left of what their containers have.
	_, _, sees := a.API.Pods()
	usage, err := a.state.Reconcile(ctx)
	if err != nil {
		a.Log.DebugContext(ctx, "it is not known who has which share", "err", err)
		return
	}
	t.cards.Store(&usage.GPUs)
	a.wakeBridge()
	for _, d := range usage.Drifts {
		t.drifted(ctx, d)
	}
	if a.Limiter != nil {
		if err := a.Limiter.Keep(ctx, a.state.View().Limits()); err != nil {
			a.Log.WarnContext(ctx, "what limits shares is not all in order", "err", err)
		}
	}
	t.count()
	if !a.API.Online() {
		return
	}
	t.tellNode(ctx, usage.GPUs)
	if sees {
		pods, _, _ := a.API.Pods()
		t.evictRefused(ctx, pods, time.Now())
		t.tellPods(ctx, pods, usage.Incomplete)
	}
}

// nodeSays tells whether the Node has an annotation of shared cards, which may
// be of another life of ours.
func (t *tenancy) nodeSays() bool {
	if !t.nodeAt.IsZero() {
		return false
	}
	text, _ := t.agent.API.Annotation(wellknown.SGPUCards)
	return text != ""
}

// shares tells whether the node shares cards, or did.
func (a *Agent) shares() bool {
	return a.config().Mode == config.ModeSGPU || a.modes.Any(config.ModeSGPU)
}

func (t *tenancy) drifted(ctx context.Context, d devicestate.Drift) {
	t.drift.WithLabelValues(d.Kind).Inc()
	t.agent.Log.WarnContext(ctx, "shares are not as recorded", "kind", d.Kind, "message", d.Message)
	t.record(ctx, health.NodeEvent{Warning: true, Reason: ReasonDrift, Message: d.Message})
}

// record makes an Event on the Node.
func (t *tenancy) record(ctx context.Context, n health.NodeEvent) {
	if err := t.agent.API.Record(ctx, n); err != nil {
		t.agent.Log.WarnContext(ctx, "an Event could not be recorded", "err", err, "message", n.Message)
	}
}

// count sets the gauge of refused pods.
func (t *tenancy) count() {
	for _, kind := range []string{
		allocate.RejectedRequest, allocate.RejectedAllocation, allocate.RejectedUnscheduled, allocate.RejectedFull,
	} {
		t.refused.WithLabelValues(kind).Set(0)
	}
	for _, r := range t.agent.state.Rejections() {
		t.refused.WithLabelValues(r.Kind).Inc()
	}
}

// tellNode writes [wellknown.SGPUCards] if it differs from the last time; a Node
// without shared cards has none.
func (t *tenancy) tellNode(ctx context.Context, cards []quota.GPU) {
	text := ""
	var value *string
	if len(cards) > 0 {
		text = quota.Publish(cards).String()
		value = &text
	}
	if text == t.node && (text == "" || time.Since(t.nodeAt) < publishAgain) && !t.nodeSays() {
		return
	}
	if err := t.agent.API.AnnotateNode(ctx, "", map[string]*string{wellknown.SGPUCards: value}); err != nil {
		t.agent.Log.WarnContext(ctx, "the Node does not say yet what its shared cards have left", "err", err)
		signal(t.woken)
		return
	}
	t.node, t.nodeAt = text, time.Now()
}
