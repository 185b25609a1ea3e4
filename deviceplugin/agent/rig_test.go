package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/internal/notify"
	testkubelet "github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/machines"
)

const (
	gpus = "nvidia.com/gpu"
	hcas = "rdma/hca_shared_devices_ib"
	node = "gpu-1"
)

// cell is a value that changes: a machine, or a configuration.
type cell[T any] struct {
	mu      sync.Mutex
	value   T
	changed notify.Signal
}

func newCell[T any](v T) *cell[T] { return &cell[T]{value: v, changed: notify.New()} }

func (c *cell[T]) Changed() <-chan struct{} { return c.changed }

func (c *cell[T]) get() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

func (c *cell[T]) set(v T) {
	c.mu.Lock()
	c.value = v
	c.mu.Unlock()
	c.changed.Notify()
}

type source struct{ *cell[*machine.Machine] }

func (s source) Machine() *machine.Machine { return s.get() }

// rig is a node with a kubelet and an agent.
type rig struct {
	t       testing.TB
	kubelet *testkubelet.Kubelet
	*Agent
	source   source
	configs  string // A directory as a ConfigMap is mounted.
	api      *api
	registry *prometheus.Registry
	pods     *prometheus.Registry // Has the metrics that name pods.
	options  Options
	conn     *grpc.ClientConn
	stop     func()
	// passed is by how much the device state's clock is ahead, in ns.
	passed atomic.Int64
}

// newRig runs nothing yet: see run.
func newRig(tb testing.TB, name string, change ...func(*Options)) *rig {
	tb.Helper()
	r := &rig{
		t: tb, kubelet: testkubelet.Start(tb, testkubelet.Dir(tb)), source: source{newCell(machines.Load(tb, name))},
		configs: tb.TempDir(), api: newAPI(tb), registry: prometheus.NewRegistry(), pods: prometheus.NewRegistry(),
	}
	conn, err := kubelet.Dial(r.kubelet.PodResourcesSocket())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	dir := tb.TempDir()
	r.conn = conn
	r.options = Options{
		NodeName: node, Configs: r.watcher(), Source: r.source,
		Generator: devgpu.ReplayedEdits{Dir: filepath.Join(dir, "nodes"), Vendors: host.Vendors()}, Vendors: host.Vendors(),
		Strategy: resource.CDI, KubeletDir: filepath.Dir(r.kubelet.PluginDir()),
		CDIDir: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"), DevRoot: filepath.Join(dir, "dev"),
		API:      r.api.client(),
		Interval: time.Second, Registerer: r.registry, PodRegisterer: r.pods, Log: slog.New(slog.DiscardHandler),
		now: func() time.Time { return time.Now().Add(time.Duration(r.passed.Load())) },
	}
	for _, f := range change {
		f(&r.options)
	}
	r.Agent = New(r.options, r.conn)
	return r
}

// run runs the agent until the test or stop ends it, and waits for its end.
func (r *rig) run() *rig {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.API.Run(ctx) })
	group.Go(func() error { return r.Run(ctx) })
	go func() { done <- group.Wait() }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
	r.t.Cleanup(r.stop)
	return r
}

// again stops the agent and runs another one in its place.
func (r *rig) again(t *testing.T) {
	t.Helper()
	r.stop()
	r.registry, r.pods = prometheus.NewRegistry(), prometheus.NewRegistry()
	r.options.Registerer, r.options.PodRegisterer = r.registry, r.pods
	if r.options.API.Online() {
		r.options.API = r.api.client()
	}
	r.Agent = New(r.options, r.conn)
	r.run()
}

// list waits until the kubelet has so many healthy and unhealthy devices, and
// the agent knows that they are registered: it learns that a moment later.
func (r *rig) list(resource string, healthy, unhealthy int) testkubelet.State {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	state := r.kubelet.Wait(ctx, resource, func(s testkubelet.State) bool {
		return len(s.Healthy) == healthy && len(s.Unhealthy) == unhealthy
	})
	for {
		if s := r.resources.all()[resource]; s != nil && s.plugin.Status().Registered {
			return state
		}
		if ctx.Err() != nil {
			r.t.Fatalf("%s has %+v, and the agent does not know that it is registered", resource, state)
		}
		runtime.Gosched()
	}
}

// alter replaces the machine by a changed copy.
func (r *rig) alter(f func(*machine.Machine)) {
	r.t.Helper()
	b, err := machine.Encode(r.source.get())
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := machine.Decode(b)
	if err != nil {
		r.t.Fatal(err)
	}
	f(m)
	r.source.set(m)
}

// watcher follows the configuration until the test ends.
func (r *rig) watcher() *config.Watcher {
	r.t.Helper()
	r.write("version", "v1")
	r.write("cluster-config", "")
	w, err := config.NewWatcher(r.configs, config.Uncompiled{}, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	w.Every = time.Second
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	return w
}

func (r *rig) write(file, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.configs, file), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// configure takes a cluster-config, and waits until it is read.
func (r *rig) configure(text string) { r.t.Helper(); r.set("cluster-config", text) }

func (r *rig) set(file, text string) {
	r.t.Helper()
	before := r.Configs.Current()
	r.write(file, text)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); r.Configs.Current() == before; {
		if (<-tick.C).After(end) {
			r.t.Fatalf("the configuration was not read: %v", r.Configs.Err())
		}
	}
}

// admit admits a pod of one container and returns its devices by resource.
func (r *rig) admit(name string, limits map[string]int) map[string][]string {
	r.t.Helper()
	p := testkubelet.Pod{
		Namespace: "default", Name: name, UID: uidOf(name),
		Containers: []testkubelet.Container{{Name: "main", Limits: limits}},
	}
	if err := r.kubelet.AdmitPod(r.t.Context(), p); err != nil {
		r.t.Fatal(err)
	}
	held := map[string][]string{}
	for resource := range limits {
		held[resource] = r.kubelet.Held(p.UID, "main", resource)
	}
	return held
}

func (r *rig) start(name string) {
	r.t.Helper()
	if _, err := r.kubelet.StartContainer(r.t.Context(), "default", name, "main"); err != nil {
		r.t.Fatal(err)
	}
}

// create adds a pod, and waits until the agent knows it, if it knows any.
func (r *rig) create(p *corev1.Pod) {
	r.t.Helper()
	r.api.create(p)
	for range 2000 {
		pods, changed, known := r.API.Pods()
		if !known || slices.ContainsFunc(pods, func(q *corev1.Pod) bool { return q.UID == p.UID }) {
			return
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond):
		}
	}
	r.t.Fatalf("pod %s is not known", p.Name)
}

// wish is a pod as the API server has it before the kubelet admits it.
func wish(name string, limits map[string]string, annotations map[string]string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Annotations = "default", name, types.UID(uidOf(name)), annotations
	p.Status.Phase = corev1.PodPending
	p.Spec.Containers = []corev1.Container{{Name: "main"}}
	p.Spec.Containers[0].Resources.Limits = resourceList(limits)
	return p
}

func has(list []string, part string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, part) })
}

// uidOf is a pod's UID, as long as real ones.
func uidOf(pod string) string {
	sum := sha256.Sum256([]byte(pod))
	h := hex.EncodeToString(sum[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:32]}, "-")
}
