package master_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/httpapi"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/publish"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// cluster is an API server and what replicas of topo-master see of it.
type cluster struct {
	*apiserver.Server
	config *rest.Config
}

func newCluster(t *testing.T, more ...apiserver.Kind) *cluster {
	t.Helper()
	s := apiserver.New(more...)
	ts := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Down(true) // Ends the watches.
		ts.Close()
	})
	return &cluster{Server: s, config: &rest.Config{Host: ts.URL, QPS: -1}}
}

// node puts a Node with 8 GPUs and returns its UID.
func (c *cluster) node(name string, ready bool) string {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Read("nodes", "", name, &n)
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Unix(1_700_000_000, 0),
	}}
	n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	c.Put("nodes", &n)
	c.Read("nodes", "", name, &n)
	return string(n.UID)
}

// report puts a NodeTopology of a Node.
func (c *cluster) report(name, owner string, spec v1alpha1.NodeTopologySpec, beat time.Time) {
	nt := v1alpha1.NodeTopology{}
	c.Read("nodetopologies", "", name, &nt)
	nt.Name = name
	nt.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(owner)}}
	nt.Spec = spec
	if !beat.IsZero() {
		nt.Status.HeartbeatTime = new(metav1.NewTime(beat))
	}
	c.Put("nodetopologies", &nt)
}

// in puts a Node and a report of the groups that it is in.
func (c *cluster) in(name string, path ...string) {
	c.report(name, c.node(name, true), v1alpha1.NodeTopologySpec{Path: path, PathSource: v1alpha1.SourceStatic}, time.Time{})
}

// replica is a topo-master without a process of its own.
type replica struct {
	*master.Builder
	url      string
	registry *prometheus.Registry
}

func (c *cluster) replica(t *testing.T, mode fabric.Mode, change ...func(*master.Options)) *replica {
	t.Helper()
	core, err := informers.CoreClient(c.config)
	if err != nil {
		t.Fatal(err)
	}
	topology, err := informers.TopologyClient(c.config)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{registry: prometheus.NewRegistry()}
	o := master.Options{Levels: fabric.Preset(mode, 0), Log: quiet()}
	for _, f := range change {
		f(&o)
	}
	source := informers.New(informers.Options{
		Core: core, Topology: topology, GPUs: []corev1.ResourceName{"nvidia.com/gpu"}, Manager: publish.FieldManager,
		Clock: o.Clock,
	})
	o.Source = source
	r.Builder = master.New(o)
	r.Register(r.registry)
	run(t, source.Run)
	run(t, r.Run)
	ts := httptest.NewServer(httpapi.New(httpapi.Options{
		Latest: r.Latest(), Registry: r.registry, Contact: source.Contact, Alive: r.Alive, Log: quiet(),
	}).Handler())
	t.Cleanup(ts.Close)
	r.url = ts.URL
	return r
}

// publisher writes what a replica knows.
func (c *cluster) publisher(t *testing.T, r *replica, exports publish.Exports, change ...func(*publish.Options)) *publish.Publisher {
	t.Helper()
	objects, err := metadata.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := informers.CoreClient(c.config)
	if err != nil {
		t.Fatal(err)
	}
	o := publish.Options{
		Latest: r.Latest(), Objects: objects, Raw: raw, Exports: exports,
		Debounce: time.Millisecond, Registry: prometheus.NewRegistry(), Log: quiet(),
	}
	for _, f := range change {
		f(&o)
	}
	return publish.New(o)
}

// lead makes a replica write until the test ends or stop is called.
func (c *cluster) lead(t *testing.T, r *replica, exports publish.Exports, change ...func(*publish.Options)) (stop func()) {
	t.Helper()
	p := c.publisher(t, r, exports, change...)
	return run(t, func(ctx context.Context) error {
		p.Lead(ctx)
		return nil
	})
}

// aheadClock is ahead of the real one.
type aheadClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *aheadClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// run runs something until the test ends or stop is called.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// until waits for a view.
func (r *replica) until(t *testing.T, what string, good func(*snapshot.Snapshot) bool) *snapshot.Snapshot {
	t.Helper()
	late := time.After(time.Minute)
	for {
		v, next := r.Latest().Get()
		if v != nil && good(v) {
			return v
		}
		select {
		case <-next:
		case <-late:
			t.Fatalf("no view with %s", what)
		}
	}
}

// eventually waits for the API server to have something.
func eventually(t *testing.T, what string, good func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !good() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("never: %s", what)
		}
	}
}

// answer is what the server answered.
type answer struct {
	code   int
	header http.Header
	body   string
}

// get asks without Go's own compression.
func get(t *testing.T, url string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func nodes(n int) func(*snapshot.Snapshot) bool {
	return func(v *snapshot.Snapshot) bool {
		return v.Tree.Nodes.Ready+v.Tree.Nodes.Degraded+v.Tree.Nodes.NotReady == n
	}
}

func reports(n int) func(*snapshot.Snapshot) bool {
	return func(v *snapshot.Snapshot) bool {
		believed := 0
		for _, d := range v.Nodes {
			if d.Believed() != nil {
				believed++
			}
		}
		return believed == n
	}
}
