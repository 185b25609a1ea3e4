package informers

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Options say what to watch and what to keep.
type Options struct {
	// Core is a client for core/v1, Topology one for topology.heddle.dev.
	Core, Topology rest.Interface
	// GPU is the resource that pods ask for: nvidia.com/gpu.
	GPU string
	// Pods tells to watch pods, to know how many GPUs are free and what gangs
	// there are. All of them: a gang's pods that wait for a node are of interest,
	// and those that ended are; what says who is in a gang is a label or an
	// annotation of several spellings, which no selector of the API finds.
	Pods bool
	// Manager is our field manager on Nodes.
	Manager string
	// IsTier tells which label keys hold names of groups.
	IsTier func(key string) bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Source watches the API server.
type Source struct {
	Nodes   *Feed[Node]
	Reports *Feed[Report]
	Pods    *Feed[Pod]

	options Options
	changed chan struct{}
}

// New returns a source; Run starts it.
func New(o Options) *Source {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Source{options: o, changed: make(chan struct{}, 1)}
	s.Nodes = &Feed[Node]{signal: s.changed, now: o.Now}
	s.Reports = &Feed[Report]{signal: s.changed, now: o.Now}
	s.Pods = &Feed[Pod]{signal: s.changed, now: o.Now, synced: !o.Pods}
	return s
}

// Changed receives after something changed.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Synced tells whether everything has been seen once.
func (s *Source) Synced() bool { return s.Nodes.Synced() && s.Reports.Synced() && s.Pods.Synced() }

// Contact is how old what is known may be: when the API server last said
// anything on the watch that has been silent for longest. Zero means that one of
// them never said anything.
func (s *Source) Contact() time.Time {
	oldest := s.Nodes.Contact()
	watches := []time.Time{s.Reports.Contact()}
	if s.options.Pods {
		watches = append(watches, s.Pods.Contact())
	}
	for _, at := range watches {
		if at.Before(oldest) {
			oldest = at
		}
	}
	return oldest
}

// Run watches until ctx ends. It returns nil: what goes wrong is retried.
func (s *Source) Run(ctx context.Context) error {
	var group errgroup.Group
	gpu := corev1.ResourceName(s.options.GPU)
	nodes := nodeReader{gpu: gpu, manager: s.options.Manager, isTier: s.options.IsTier, words: words{}}
	reports := newReportReader()
	pods := newPodReader(gpu)
	group.Go(func() error {
		watch(ctx, s.options.Core, "nodes", fields.Everything(), &corev1.Node{},
			&store[Node]{feed: s.Nodes, read: nodes.read})
		return nil
	})
	group.Go(func() error {
		watch(ctx, s.options.Topology, v1alpha1.Plural, fields.Everything(), &v1alpha1.NodeTopology{},
			&store[Report]{feed: s.Reports, read: reports.read})
		return nil
	})
	if s.options.Pods {
		group.Go(func() error {
			watch(ctx, s.options.Core, "pods", fields.Everything(), &corev1.Pod{},
				&store[Pod]{feed: s.Pods, read: pods.read})
			return nil
		})
	}
	return group.Wait()
}

// watch fills a store until ctx ends.
func watch(
	ctx context.Context, client rest.Interface, resource string, only fields.Selector, example runtime.Object,
	into cache.ReflectorStore,
) {
	lw := cache.NewListWatchFromClient(client, resource, corev1.NamespaceAll, only)
	cache.NewReflectorWithOptions(lw, example, into, cache.ReflectorOptions{Name: resource}).RunWithContext(ctx)
}

// Batch is what changed since the last take.
type Batch struct {
	// Heard is when the API server last said anything about reports, whose
	// heartbeats come by that watch.
	Heard time.Time

	Nodes   Changes[Node]
	Reports Changes[Report]
	Pods    Changes[Pod]
}

// Take hands the changes over.
func (s *Source) Take() Batch {
	return Batch{Heard: s.Reports.Contact(), Nodes: s.Nodes.Take(), Reports: s.Reports.Take(), Pods: s.Pods.Take()}
}
