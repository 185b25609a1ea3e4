package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/httpapi"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

const (
	// gpu is the resource of whole GPUs.
	gpu = "nvidia.com/gpu"
	// namespace is the namespace of the pods, and the default one of the kubeconfig.
	namespace = "demo"
	// masterName and proxy are topo-master's Service, and its path of the API server.
	masterName = "heddle-topo-master"
	proxy      = "/api/v1/namespaces/heddle-system/services/" + masterName + ":9001/proxy"
)

// cluster is an API server in memory, and the topo-master that reads it.
type cluster struct {
	api    *apiserver.Server
	latest *snapshot.Latest
	// url is the address of topo-master; kubeconfig is a file for the API server.
	url, kubeconfig string
	now             metav1.Time
}

// start runs both in the group until its context ends. The page is at the port of a real topo-master, or at any
// other where that is in use.
func start(ctx context.Context, group *errgroup.Group, kubeconfig string) (*cluster, error) {
	page, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:9001")
	if err != nil {
		page, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("serve the page: %w", err)
	}
	c := &cluster{api: apiserver.New(), kubeconfig: kubeconfig, now: metav1.NewTime(time.Now().Truncate(time.Second))}
	at := &url.URL{Scheme: "http", Host: page.Addr().String()}
	c.url = at.String()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "heddle-system", Name: masterName, Labels: map[string]string{"app.kubernetes.io/name": masterName},
	}}
	service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 9001}}
	c.api.Put("services", service)
	mux := http.NewServeMux()
	mux.Handle("/", c.api)
	mux.Handle(proxy+"/", http.StripPrefix(proxy, httputil.NewSingleHostReverseProxy(at)))
	server := httptest.NewServer(mux)
	group.Go(func() error {
		<-ctx.Done()
		server.CloseClientConnections()
		return os.Remove(kubeconfig)
	})
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: demo\n"+
		"contexts: [{name: demo, context: {cluster: demo, namespace: %s}}]\n"+
		"clusters: [{name: demo, cluster: {server: %q}}]\n", namespace, server.URL)
	err = os.WriteFile(kubeconfig, []byte(text), 0o600)
	return c, errors.Join(err, c.startMaster(ctx, group, &rest.Config{Host: server.URL, QPS: -1}, page))
}

// startMaster runs topo-master with its page.
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
		Core: core, Topology: topology, GPUs: []corev1.ResourceName{gpu},
	})
	builder := master.New(master.Options{
		Source: source, Levels: fabric.Preset(fabric.ModeAuto, 0), Log: log,
	})
	c.latest = builder.Latest()
	server := httpapi.New(httpapi.Options{
		Latest: c.latest, Registry: prometheus.NewRegistry(), Contact: source.Contact, Alive: builder.Alive, Log: log,
		Consumers: informers.NewConsumers(core, []corev1.ResourceName{gpu}),
		Pending:   explain.NewLister(core, maxNodes, maxNodes, clock.RealClock{}),
	})
	group.Go(func() error { return source.Run(ctx) })
	group.Go(func() error { return builder.Run(ctx) })
	group.Go(func() error { return server.Serve(ctx, page, nil) })
	return nil
}

// add gives the cluster a machine: its Node, and the report of its cables that heddle-topo-worker would write.
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
