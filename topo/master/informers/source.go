// Package informers watches Nodes, NodeTopologies and pods in the API server.
//
// It owns the informers, the choice of the stored fields, and the check that a report belongs to
// its node. It groups nothing, decides nothing about a node's status and writes nothing.
package informers

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// Options select what to watch and what to keep.
type Options struct {
	// Core is a client for core/v1, Topology one for topology.heddle.dev.
	Core, Topology rest.Interface
	// GPUs are the resources that pods request whole GPUs by: nvidia.com/gpu, and
	// amd.com/gpu beside it in a cluster of several makers.
	GPUs []corev1.ResourceName
	// Manager is the field manager that owns heddle's labels of Nodes.
	Manager string
	// Clock is the real one if nil.
	Clock clock.PassiveClock
}

// Source watches the API server. Its methods are safe for concurrent use.
type Source struct {
	clock    clock.PassiveClock
	suspects *suspect.Memory
	nodes    *informer[Node, *Node]
	reports  *informer[Report, *Report]
	// pods are all: a gang includes pods that wait for a node and pods that ended, and no selector of
	// the API finds the labels and annotations, in several spellings, that make a pod a member.
	pods    *informer[Pod, *Pod]
	synced  atomic.Bool
	changed notify.Signal

	// mu guards what changed since the last Take, and used, the GPUs that pods
	// hold by node.
	mu         sync.Mutex
	names      map[string]struct{}
	heartbeats map[string]struct{}
	gangs      map[string]struct{}
	used       map[string]int32
}

// Changes holds the changes since the last Take. The caller owns it.
type Changes struct {
	// Nodes holds the new states of changed nodes, by name; the state of a deleted node is empty.
	Nodes map[string]*NodeState
	// Heartbeats holds the newest heartbeats of reports without other changes.
	Heartbeats map[string]time.Time
	// Gangs holds the changed gangs, by [gang.Member.Key]; a gang without members is gone.
	Gangs map[string]*Gang
	// ReportContact is the time when the API server last sent anything on the watch of reports,
	// which carries the heartbeats.
	ReportContact time.Time
}

// Gang is a gang's pods, in no order.
type Gang struct {
	// Name is the members' key.
	Name    string
	Members []*gang.Member
}

// Empty means that no pod is left.
func (g *Gang) Empty() bool { return len(g.Members) == 0 }

// New returns a source; Run starts it.
func New(o Options) *Source {
	s := &Source{clock: o.Clock, suspects: suspect.NewMemory(), changed: notify.New(), used: map[string]int32{}}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	s.reset()
	nodes := nodeReader{gpus: o.GPUs, manager: o.Manager, suspects: s.suspects}
	s.nodes = newInformer(s.clock, o.Core, "nodes", &corev1.Node{}, nil, nodes.read, s.onNode)
	s.reports = newInformer(s.clock, o.Topology, v1alpha1.Plural, &v1alpha1.NodeTopology{}, nil, readReport, s.onReport)
	pods := podReader{o.GPUs, s.suspects}
	s.pods = newInformer(s.clock, o.Core, "pods", &corev1.Pod{}, pods.wants, pods.read, s.onPod)
	utilruntime.Must(s.pods.store.AddIndexers(cache.Indexers{byGang: gangOf})) // It fails for a name twice.
	return s
}

func (s *Source) reset() {
	s.names, s.heartbeats, s.gangs = map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}
}

// Run watches until ctx ends. It returns nil: failed requests are retried.
func (s *Source) Run(ctx context.Context) error {
	var group sync.WaitGroup
	var synced []cache.DoneChecker
	for _, c := range []cache.Controller{s.nodes.controller, s.reports.controller, s.pods.controller} {
		group.Go(func() { c.RunWithContext(ctx) })
		synced = append(synced, c.HasSyncedChecker())
	}
	if cache.WaitFor(ctx, "", synced...) {
		s.synced.Store(true)
		s.changed.Notify()
	}
	group.Wait()
	return nil
}

// Changed receives after something changed.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Suspects remembers where gangs failed.
func (s *Source) Suspects() *suspect.Memory { return s.suspects }

// Synced reports whether everything has been listed once.
func (s *Source) Synced() bool { return s.synced.Load() }

// Contact returns the time when the API server last sent anything, if only a bookmark, on the watch
// that has been silent for longest. Zero means that one of them never received anything.
func (s *Source) Contact() time.Time {
	return contactTime(min(s.nodes.contact.Load(), s.reports.contact.Load(), s.pods.contact.Load()))
}

// Take hands the changes over.
func (s *Source) Take() Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Changes{
		Nodes: make(map[string]*NodeState, len(s.names)), Heartbeats: map[string]time.Time{}, Gangs: map[string]*Gang{},
		ReportContact: contactTime(s.reports.contact.Load()),
	}
	for name := range s.names {
		c.Nodes[name] = &NodeState{Name: name, Node: s.nodes.get(name), Report: s.reports.get(name), Used: s.used[name]}
	}
	for name := range s.heartbeats {
		if r := s.reports.get(name); r != nil {
			c.Heartbeats[name] = r.Heartbeat()
		}
	}
	for name := range s.gangs {
		g := &Gang{Name: name}
		pods, _ := s.pods.store.ByIndex(byGang, name) // It fails for an unknown index.
		for _, obj := range pods {
			if pod, ok := obj.(*Pod); ok {
				g.Members = append(g.Members, pod.Member)
			}
		}
		c.Gangs[name] = g
	}
	s.reset()
	return c
}

// onNode notes a change of a Node; the same value means that nothing of it that
// is used changed.
func (s *Source) onNode(old, now *Node) {
	if now == nil {
		s.suspects.Remove(old.Name)
	}
	if old != now {
		s.mu.Lock()
		s.names[cmp.Or(now, old).Name] = struct{}{}
		s.mu.Unlock()
		s.changed.Notify()
	}
}

// onReport notes a change of a NodeTopology; the same value means that it has a
// new heartbeat.
func (s *Source) onReport(old, now *Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Notify()
	if old == now {
		s.heartbeats[now.Name] = struct{}{}
	} else {
		s.names[cmp.Or(now, old).Name] = struct{}{}
	}
}

// onPod notes a change of a pod.
func (s *Source) onPod(old, now *Pod) {
	if old == now {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Notify()
	s.count(old, -1)
	s.count(now, 1)
	if now == nil && old.Member != nil {
		s.suspects.Lose(old.uid, s.clock.Now())
	}
}

// count adds a pod's GPUs to its node or takes them away.
func (s *Source) count(pod *Pod, sign int32) {
	if pod == nil {
		return
	}
	if pod.GPUs > 0 {
		s.names[pod.Node] = struct{}{}
		if s.used[pod.Node] += sign * pod.GPUs; s.used[pod.Node] == 0 {
			delete(s.used, pod.Node)
		}
	}
	if pod.Member != nil {
		s.gangs[pod.Member.Key()] = struct{}{}
	}
}

// protobuf is the API server's encoding of built-in kinds and takes a quarter of the work of JSON.
// Custom resources support JSON only.
const protobuf = "application/vnd.kubernetes.protobuf"

// CoreClient returns a client for core/v1.
func CoreClient(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = protobuf, protobuf+","+runtime.ContentTypeJSON
	return kube.ClientFor(config, config.UserAgent)
}

// TopologyClient returns a client for topology.heddle.dev.
func TopologyClient(config *rest.Config) (rest.Interface, error) {
	scheme, version := runtime.NewScheme(), v1alpha1.GroupVersion()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register %s: %w", version, err)
	}
	metav1.AddToGroupVersion(scheme, version)
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.APIPath, config.GroupVersion = "/apis", &version
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", version, err)
	}
	return c, nil
}
