package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/httpapi"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// gpu is the resource of whole GPUs.
const gpu = "nvidia.com/gpu"

// cluster is an API server in memory, and topo-master that reads it as it would read a
// real one.
type cluster struct {
	api    *apiserver.Server
	latest *snapshot.Latest
	// url is the address of topo-master, apiURL of the API server.
	url, apiURL string
	now         metav1.Time
}

// start runs both in the group until its context ends; the page is at address, or at
// another port where that one is in use and may be another.
func start(ctx context.Context, group *errgroup.Group, address string, anyPort bool) (*cluster, error) {
	c := &cluster{api: apiserver.New(), now: metav1.NewTime(time.Now().Truncate(time.Second))}
	reads, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve the API in memory: %w", err)
	}
	api := &http.Server{Handler: c.api, ReadHeaderTimeout: time.Minute}
	group.Go(func() error {
		if err := api.Serve(reads); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the API in memory: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return api.Close()
	})
	page, err := listen(ctx, address, anyPort)
	if err != nil {
		return nil, err
	}
	c.url, c.apiURL = "http://"+page.Addr().String(), "http://"+reads.Addr().String()
	return c, c.startMaster(ctx, group, &rest.Config{Host: c.apiURL, QPS: -1}, page)
}

// startMaster runs a topo-master that reads an API server, with its page.
func (c *cluster) startMaster(
	ctx context.Context, group *errgroup.Group, config *rest.Config, page net.Listener,
) error {
	core, err := informers.CoreClient(config)
	if err != nil {
		return err
	}
	topology, err := informers.TopologyClient(config)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	source := informers.New(informers.Options{
		Core: core, Topology: topology, GPUs: []corev1.ResourceName{gpu}, Pods: true,
	})
	builder := master.New(master.Options{
		Source: source, CountsPods: true, Levels: fabric.Preset(fabric.ModeAuto, 0), Log: log,
	})
	c.latest = builder.Latest()
	registry := prometheus.NewRegistry()
	builder.Register(registry)
	server := httpapi.New(httpapi.Options{
		Latest: c.latest, Registry: registry,
		Contact: source.Contact, Alive: builder.Alive, Log: log,
	})
	group.Go(func() error { return source.Run(ctx) })
	group.Go(func() error { return builder.Run(ctx) })
	group.Go(func() error { return server.Serve(ctx, page, nil) })
	return nil
}

// listen is on an address, or on any port of its host.
func listen(ctx context.Context, address string, anyPort bool) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil && anyPort {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("serve the page: %w\nGive another address with --listen", err)
	}
	return l, nil
}

// add gives the cluster a machine: its Node, and the report of its cables that
// heddle-topo-worker would write.
func (c *cluster) add(m *machine) {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: c.now,
	}}
	const pods = 110 // The kubelet's default.
	n.Status.Allocatable = corev1.ResourceList{
		gpu:                 *resource.NewQuantity(int64(m.gpus), resource.DecimalSI),
		corev1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI),
	}
	c.api.Put("nodes", &n)
	c.report(m)
}

// report writes the report of the machine's worker.
func (c *cluster) report(m *machine) {
	var n corev1.Node
	c.api.Read("nodes", "", m.name, &n)
	report := v1alpha1.NodeTopology{Spec: m.spec}
	report.Name = m.name
	report.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: m.name, UID: n.UID}}
	c.api.Put(v1alpha1.Plural, &report)
}

// until waits for topo-master to know something.
func (c *cluster) until(ctx context.Context, what string, good func(*snapshot.Snapshot) bool) error {
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		s, next := c.latest.Get()
		if s != nil && good(s) {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}
