package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/mode"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
	"github.com/heddle-dev/heddle/test/kubelet"
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
	changed chan struct{}
}

func newCell[T any](v T) *cell[T] { return &cell[T]{value: v, changed: make(chan struct{}, 1)} }

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
	signal(c.changed)
}

type source struct{ *cell[*machine.Machine] }

func (s source) Machine() *machine.Machine { return s.get() }

type configs struct{ *cell[*config.Config] }

func (c configs) Current() *config.Config { return c.get() }
func (configs) Err() error                { return nil }

// api is an API server that is asked through the agent's interfaces.
type api struct {
	mu         sync.Mutex
	conditions []health.Condition
	// pending are the conditions HeddleModePending.
	pending     []health.Condition
	annotations []map[string]string
	notices     []string
	warnings    []string
	claimed     map[string]string
	pods        []*corev1.Pod
	podsNote    chan struct{}
	// unlisted tells that there may be more pods.
	unlisted bool
	labels   map[string]string
	note     chan struct{}
	changed  chan struct{}
	// hang makes every call wait for its context.
	hang bool
}

func newAPI() *api {
	return &api{
		labels: map[string]string{}, note: make(chan struct{}), changed: make(chan struct{}, 1), podsNote: make(chan struct{}),
	}
}

// do makes a call, and wakes those who wait.
func (a *api) do(ctx context.Context, f func()) error {
	a.mu.Lock()
	hang := a.hang
	if !hang {
		f()
	}
	close(a.note)
	a.note = make(chan struct{})
	a.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (a *api) Labels() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.labels
}

func (a *api) Changed() <-chan struct{} { return a.changed }

func (a *api) SetCondition(ctx context.Context, c health.Condition) error {
	return a.do(ctx, func() {
		if c.Type == mode.ConditionType {
			a.pending = append(a.pending, c)
			return
		}
		a.conditions = append(a.conditions, c)
	})
}

func (a *api) Annotate(ctx context.Context, annotations map[string]string) error {
	return a.do(ctx, func() { a.annotations = append(a.annotations, annotations) })
}

func (a *api) Record(ctx context.Context, n health.NodeEvent) error {
	return a.do(ctx, func() { a.notices = append(a.notices, n.Reason+" "+n.Message) })
}

func (a *api) Warn(pod binder.Pod, reason, message string) {
	_ = a.do(context.Background(), func() {
		a.warnings = append(a.warnings, pod.String()+" "+reason+": "+message)
	})
}

func (a *api) Claimed(ctx context.Context, resource string) (owner string, err error) {
	err = a.do(ctx, func() { owner = a.claimed[resource] })
	return owner, err
}

func (a *api) Pods() ([]*corev1.Pod, <-chan struct{}, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.pods), a.podsNote, !a.unlisted
}

func (a *api) Pod(_ context.Context, pod binder.Pod) (*corev1.Pod, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pods {
		if p.Namespace == pod.Namespace && p.Name == pod.Name {
			return p, nil
		}
	}
	return nil, errors.New("not known")
}

func (a *api) create(p *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods = append(a.pods, p)
	close(a.podsNote)
	a.podsNote = make(chan struct{})
}

// wait blocks until ok, which is called with the lock held.
func (a *api) wait(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for {
		a.mu.Lock()
		done, note := ok(), a.note
		a.mu.Unlock()
		if done {
			return
		}
		select {
		case <-note:
		case <-tb.Context().Done():
		case <-time.After(20 * time.Second):
			a.mu.Lock()
			defer a.mu.Unlock()
			tb.Fatalf("%s did not come; conditions %v, notices %v, warnings %v", what, a.conditions, a.notices, a.warnings)
		}
	}
}

// rig is a node with a kubelet and an agent.
type rig struct {
	t       testing.TB
	kubelet *kubelet.Kubelet
	*Agent
	source   source
	configs  configs
	api      *api
	registry *prometheus.Registry
	options  Options
	client   PodResourcesClient
	stop     func()
}

// newRig runs nothing yet: see run.
func newRig(tb testing.TB, name string, change ...func(*Options)) *rig {
	tb.Helper()
	r := &rig{
		t: tb, kubelet: kubelet.Start(tb, kubelet.Dir(tb)), source: source{newCell(machines.Load(tb, name))},
		configs: configs{newCell(config.New(config.Default()))}, api: newAPI(), registry: prometheus.NewRegistry(),
	}
	conn, err := binder.Dial(r.kubelet.PodResourcesSocket())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	dir := tb.TempDir()
	r.client = podresources.NewPodResourcesListerClient(conn)
	r.options = Options{
		NodeName: node, Configs: r.configs, Source: r.source,
		Generator: devgpu.ReplayedEdits{Dir: filepath.Join(dir, "nodes"), Vendors: vendors.All()}, Vendors: vendors.All(),
		Strategy: gpu.CDI, KubeletDir: filepath.Dir(r.kubelet.PluginDir()),
		CDIDir: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"), DevRoot: filepath.Join(dir, "dev"),
		PodSpecs: r.api, BinderEvents: r.api, Recorder: r.api, Publisher: r.api, NodePods: r.api, Claims: r.api,
		Interval: time.Second, Registerer: r.registry, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&r.options)
	}
	r.Agent = New(r.options, r.client)
	return r
}

// run runs the agent until the test or stop ends it, and waits for its end.
func (r *rig) run() *rig {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
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
	r.registry = prometheus.NewRegistry()
	r.options.Registerer = r.registry
	r.Agent = New(r.options, r.client)
	r.run()
}

// list waits until the kubelet has so many healthy and unhealthy devices, and
// the agent knows that they are registered: it learns that a moment later.
func (r *rig) list(resource string, healthy, unhealthy int) kubelet.State {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	state := r.kubelet.Wait(ctx, resource, func(s kubelet.State) bool {
		return len(s.Healthy) == healthy && len(s.Unhealthy) == unhealthy
	})
	for {
		if s := r.all()[resource]; s != nil && s.plugin.Status().Registered {
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

// configure takes a cluster-config.
func (r *rig) configure(text string) {
	r.t.Helper()
	c, err := config.Parse(map[string][]byte{"version": []byte("v1"), "cluster-config": []byte(text)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.configs.set(c)
}

// admit admits a pod of one container and returns its devices by resource.
func (r *rig) admit(name string, limits map[string]int) map[string][]string {
	r.t.Helper()
	p := kubelet.Pod{
		Namespace: "default", Name: name, UID: "uid-" + name,
		Containers: []kubelet.Container{{Name: "main", Limits: limits}},
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

func (r *rig) start(name string) []string {
	r.t.Helper()
	resp, err := r.kubelet.StartContainer(r.t.Context(), "default", name, "main")
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, d := range resp.CdiDevices {
		names = append(names, d.Name)
	}
	return names
}

// wish is a pod as the API server has it before the kubelet admits it.
func wish(name string, limits map[string]string, annotations map[string]string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Annotations = "default", name, types.UID("uid-"+name), annotations
	p.Status.Phase = corev1.PodPending
	p.Spec.Containers = []corev1.Container{{Name: "main"}}
	p.Spec.Containers[0].Resources.Limits = resourceList(limits)
	return p
}

func has(list []string, part string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, part) })
}
