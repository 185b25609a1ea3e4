//go:build e2e

package page

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/httpapi"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

const gpu = "nvidia.com/gpu"

// rig is a topo-master with its page, on an API server in memory.
type rig struct {
	api    *apiserver.Server
	fabric *fabrics.Fabric
	server *httptest.Server
	routes http.Handler
	config *rest.Config
	latest *snapshot.Latest
	// behind is how far the master's clock is, in nanoseconds.
	behind atomic.Int64
}

// Now and Since make the rig the master's clock.
func (r *rig) Now() time.Time { return time.Now().Add(-time.Duration(r.behind.Load())) }

// Since is as in time.
func (r *rig) Since(at time.Time) time.Duration { return r.Now().Sub(at) }

// start fills an API server with a fabric's nodes, and runs a master on it.
// touch may change a Node before it is there.
func start(
	t testing.TB, f *fabrics.Fabric, touch func(i int, node *corev1.Node), used func(i int) int, behind ...time.Duration,
) *rig {
	t.Helper()
	r := &rig{api: apiserver.New(apiserver.Kind{APIVersion: "v1", Name: "Event", Plural: "events"}), fabric: f}
	for _, d := range behind {
		r.behind.Store(int64(d))
	}
	for i := range f.Nodes {
		node := kubeNode(f.Nodes[i].Name)
		if touch != nil {
			touch(i, node)
		}
		r.api.Put("nodes", node)
		r.report(i, r.Now())
		if n := used(i); n > 0 {
			r.pod(f.Nodes[i].Name, n)
		}
	}
	r.run(t)
	return r
}

// run starts the parts that heddle-topo-master wires.
func (r *rig) run(t testing.TB) {
	t.Helper()
	kube := httptest.NewServer(r.api)
	t.Cleanup(kube.Close)
	t.Cleanup(kube.CloseClientConnections)
	config := &rest.Config{Host: kube.URL, QPS: -1}
	r.config = config
	core, err := informers.CoreClient(config)
	must(t, err)
	topology, err := informers.TopologyClient(config)
	must(t, err)
	levels := fabric.Preset(fabric.ModeAuto, 0)
	source := informers.New(informers.Options{
		Core: core, Topology: topology, GPUs: []corev1.ResourceName{gpu}, Manager: "heddle-topo-master",
		Clock: r,
	})
	history := informers.NewHistory(core, "heddle-topo-master", clock.RealClock{})
	log := slog.New(slog.DiscardHandler)
	m := master.New(master.Options{Source: source, Levels: levels, Log: log, Clock: r})
	r.latest = m.Latest()
	r.routes = httpapi.New(httpapi.Options{
		Latest: m.Latest(), Registry: prometheus.NewRegistry(), Log: log,
		Contact: source.Contact, Alive: m.Alive, History: history, Consumers: informers.NewConsumers(core, []corev1.ResourceName{gpu}),
		Pending: explain.NewLister(core, 5000, 50000, clock.RealClock{}),
	}).Handler()
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	group.Go(func() error { return source.Run(ctx) })
	group.Go(func() error { return m.Run(ctx) })
	r.listen(t, "127.0.0.1:0")
	t.Cleanup(func() {
		cancel()
		r.away()
		must(t, group.Wait())
	})
	r.await(t)
}

// listen answers on an address.
func (r *rig) listen(t testing.TB, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	must(t, err)
	r.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: r.routes}}
	r.server.Start()
}

// away ends the server, and every connection to it.
func (r *rig) away() {
	r.server.CloseClientConnections()
	r.server.Close()
}

// await waits for the first tree.
func (r *rig) await(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		answer, err := http.Get(r.server.URL + "/v1/topology")
		must(t, err)
		answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
	t.Fatal("the master has no tree after a minute")
}

func kubeNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{gpu: resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("110")},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(time.Now().Add(-26 * time.Hour)),
			}},
		},
	}
}

// report writes the NodeTopology of a node, as it is in the fabric now.
func (r *rig) report(i int, beat time.Time) {
	n := &r.fabric.Nodes[i]
	r.api.Put("nodetopologies", &v1alpha1.NodeTopology{
		ObjectMeta: metav1.ObjectMeta{
			Name:            n.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID("uid-" + n.Name)}},
		},
		Spec:   n.Spec,
		Status: v1alpha1.NodeTopologyStatus{HeartbeatTime: &metav1.Time{Time: beat}},
	})
}

// pod is one that holds GPUs of a node.
func (r *rig) pod(node string, gpus int) {
	r.api.Put("pods", &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "train-" + node, Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "train", Resources: whole(gpus),
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	})
}

// whole are so many GPUs, with the requests that an API server makes of limits.
func whole(gpus int) corev1.ResourceRequirements {
	list := corev1.ResourceList{gpu: resource.MustParse(fmt.Sprint(gpus))}
	return corev1.ResourceRequirements{Limits: list, Requests: list}
}

// notReady makes a node so, since some time ago.
func notReady(node *corev1.Node, ago time.Duration) {
	node.Status.Conditions[0].Status = corev1.ConditionFalse
	node.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-ago))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
