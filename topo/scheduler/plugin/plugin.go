// Package plugin is a plugin of kube-scheduler that places gangs by the map
// of the fabric.
//
// It owns the gangs that wait, the plans made for them, and what a plan
// promises: a plan is a reservation, which Filter charges to all other pods
// until its members are there or its time is up. It speaks the framework's
// interfaces alone (k8s.io/kube-scheduler/framework). Which node a rank gets is
// topo/placement's to say, what a gang is is topo/gang's. It never asks
// topo-master within a scheduling cycle, and never lets a pod die for half a
// gang.
//
// # The way of a gang
//
// PreEnqueue keeps the members out of the queue until there are as many as the
// gang needs. The first that is tried plans for all (PreFilter): every member
// has a node then, or the gang is refused with a reason. Filter accepts that
// node alone. Permit holds the members until enough of them are reserved, of
// this gang and of all gangs of its groups; then all are bound. Whatever goes
// wrong before that, a member that goes away or a deadline that passes, frees
// everything at once.
//
// A gang that labels describe has a PodGroup object for people to look at, which
// podgroup keeps and which decides nothing.
//
// Of a refused gang one member, the leader, tries again when something changed;
// the others repeat what was said to it, so a gang of thousands costs one plan.
//
// # The way of a native PodGroup
//
// All of that is with the feature gates off. With GenericWorkload on, Kubernetes
// keeps the members of a PodGroup of scheduling.k8s.io together, in one cycle of
// the scheduler, and asks where they may go (GeneratePlacements). The answer is
// a short list, the tightest group first; PreFilter gives every member its node
// of the plan, and Filter accepts that alone, as above. If one is turned away,
// the next placement on the list is planned around that node. Nothing of it is
// in the book: what other gangs were promised counts, and nothing is promised.
package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Name is the plugin's in the scheduler's configuration.
const Name = "Heddle"

var (
	_ framework.PreEnqueuePlugin  = (*Plugin)(nil)
	_ framework.PreFilterPlugin   = (*Plugin)(nil)
	_ framework.FilterPlugin      = (*Plugin)(nil)
	_ framework.PostFilterPlugin  = (*Plugin)(nil)
	_ framework.PreScorePlugin    = (*Plugin)(nil)
	_ framework.ScorePlugin       = (*Plugin)(nil)
	_ framework.ReservePlugin     = (*Plugin)(nil)
	_ framework.PermitPlugin      = (*Plugin)(nil)
	_ framework.BindPlugin        = (*Plugin)(nil)
	_ framework.PostBindPlugin    = (*Plugin)(nil)
	_ framework.EnqueueExtensions = (*Plugin)(nil)
	_ framework.SignPlugin        = (*Plugin)(nil)
)

// Map is where the map comes from: feed.Feed.
type Map interface {
	// Current is the last map, and a channel that is closed when there is
	// another one.
	Current() (topologyclient.Map, <-chan struct{})
	// Fresh tells whether a map is young enough to be believed.
	Fresh(m topologyclient.Map, at time.Time) bool
}

// Plugin places gangs.
type Plugin struct {
	args   Args
	handle framework.Handle
	log    *slog.Logger
	logr   logr.Logger
	source Map

	book   *book
	table  fit.Table
	tables tables
	cards  sgpu.Book
	whole  sgpu.Whole
	// chart is the tree of the last plan; the scheduling cycle's alone.
	chart chart

	// wakes has the gangs to try again; the empty name is all that were refused.
	wakes chan struct{}
	mu    sync.Mutex
	woken map[types.NamespacedName]bool
	// decisions are the cards of pods that share some, until the pods are gone.
	decisions map[types.UID]*allocation.Allocation
	// blocked are pods of no gang that promises kept from a node.
	blocked map[types.UID]bool
	// shy is what native PodGroups avoid, and unasked tells once that the
	// scheduler does not ask where they go.
	shy     shy
	unasked sync.Once

	// What the process has: see Option.
	registry prometheus.Registerer
	election func() (leads, known bool)
	// led tells that this process schedules, synced that all pods were seen;
	// looked counts the API groups of PodGroups that were looked for.
	led        atomic.Bool
	leadership leadership // tend's alone.
	synced     func() bool
	looked     atomic.Int32
	meters     *meters
	// room is what was free lately.
	room room

	stop context.CancelFunc
	done sync.WaitGroup
}

// Factory makes the plugin, in the form that kube-scheduler registers.
func Factory(
	log *slog.Logger, with ...Option,
) func(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
	return func(ctx context.Context, object runtime.Object, handle framework.Handle) (framework.Plugin, error) {
		args, err := readArgs(object)
		if err != nil {
			return nil, err
		}
		return New(ctx, args, handle, log, with...)
	}
}

// New makes the plugin and starts what it does in the background; Close ends
// that.
func New(
	ctx context.Context, args Args, handle framework.Handle, log *slog.Logger, with ...Option,
) (*Plugin, error) {
	p := &Plugin{
		args: args, handle: handle, log: log, logr: logr.FromSlogHandler(log.Handler()), source: noMap{},
		book: newBook(args.domains(), args.Ignored), wakes: make(chan struct{}, 1),
		woken: map[types.NamespacedName]bool{}, blocked: map[types.UID]bool{},
		cards: sgpu.Book{Config: args.nodeConfig()}, decisions: map[types.UID]*allocation.Allocation{},
		meters: newMeters(),
	}
	for _, option := range with {
		option(p)
	}
	p.book.meters = p.meters
	p.book.choose = p.choose
	ctx, p.stop = context.WithCancel(ctx)
	if args.TopoMaster != "" {
		f := topologyclient.New(topologyclient.Options{
			URL: args.TopoMaster, CAFile: args.CAFile, TokenFile: args.TokenFile,
			Interval: args.Interval.Duration, MaxAge: args.MaxAge.Duration, Log: log,
		})
		p.source = f
		p.done.Go(func() { _ = f.Run(ctx) }) // Its error is always nil.
	}
	if err := p.watch(); err != nil {
		p.stop()
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	p.register(ctx)
	p.done.Go(func() { p.tend(ctx) })
	if config := handle.KubeConfig(); config != nil {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			_ = p.Close() // It always ends well.
			return nil, fmt.Errorf("client for podgroups: %w", err)
		}
		for _, group := range []string{gang.APIGroup, gang.APIGroupXK8s} {
			p.done.Go(func() { p.follow(ctx, client, group) })
		}
	}
	return p, nil
}

// Name is the plugin's.
func (*Plugin) Name() string { return Name }

// Close ends what runs in the background; the framework calls it.
func (p *Plugin) Close() error {
	p.stop()
	p.done.Wait()
	return nil
}

// noMap is the source without a topo-master.
type noMap struct{}

func (noMap) Current() (topologyclient.Map, <-chan struct{}) { return topologyclient.Map{}, nil }
func (noMap) Fresh(topologyclient.Map, time.Time) bool       { return false }
