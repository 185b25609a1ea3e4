package server_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/test/kubelet"
)

const gpu = "nvidia.com/gpu"

// newPlugin fills in what a test does not care for.
func newPlugin(o server.Options) *server.Plugin {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	return server.New(o)
}

// rack is a Resource of named devices. Its answer to Allocate is one CDI
// device for each ID.
type rack struct {
	*server.List
	prefer func(available, must []string, size int) ([]string, error)
	// allocate and prestart run, when set, inside the calls.
	allocate func(ctx context.Context, ids []string) error
	prestart func(ctx context.Context, ids []string) error
}

func newRack(ids ...string) *rack {
	r := &rack{List: server.NewList()}
	r.set(ids...)
	return r
}

// set replaces the devices; one that begins with "!" is unhealthy.
func (r *rack) set(ids ...string) {
	devices := make([]server.Device, len(ids))
	for i, id := range ids {
		devices[i] = server.Device{ID: id, Healthy: true, NUMA: []int64{0}}
		if id[0] == '!' {
			devices[i] = server.Device{ID: id[1:], NUMA: []int64{0}}
		}
	}
	r.Offer(devices)
}

func (r *rack) Prefer(available, must []string, size int) ([]string, error) {
	if r.prefer != nil {
		return r.prefer(available, must, size)
	}
	slices.Sort(available)
	return available[:size], nil
}

func (r *rack) Allocate(ctx context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	if r.allocate != nil {
		if err := r.allocate(ctx, ids); err != nil {
			return nil, err
		}
	}
	resp := &v1beta1.ContainerAllocateResponse{}
	for _, id := range ids {
		resp.CdiDevices = append(resp.CdiDevices, &v1beta1.CDIDevice{Name: "example.com/gpu=" + id})
	}
	return resp, nil
}

func (r *rack) PreStart(ctx context.Context, ids []string) error {
	if r.prestart != nil {
		return r.prestart(ctx, ids)
	}
	return nil
}

// run runs a plugin until the test ends or the returned function is called,
// which waits for it.
func run(tb testing.TB, p *server.Plugin) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var watching sync.WaitGroup
	watching.Go(func() { p.Watch(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		watching.Wait()
		if err := <-done; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

// within bounds a wait so that a fault fails the test and does not hang it.
func within(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 5*time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

// until polls for what has no notification: what the plugin knows a moment later
// than the kubelet.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	ctx := within(tb)
	for !ok() {
		if ctx.Err() != nil {
			tb.Fatalf("%s did not come", what)
		}
		runtime.Gosched()
	}
}

func serving(n int) func(kubelet.State) bool {
	return func(s kubelet.State) bool { return s.Connected > 0 && len(s.Healthy) == n }
}

func cdi(resp *v1beta1.ContainerAllocateResponse) []string {
	var names []string
	for _, d := range resp.GetCdiDevices() {
		names = append(names, d.GetName())
	}
	return names
}

func TestAPodGetsThePreferredDevices(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a", "b", "c", "d")
	r.prefer = func(_, _ []string, _ int) ([]string, error) { return []string{"b", "d"}, nil }
	run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r}))
	k.Wait(within(t), gpu, serving(4))

	ids, err := k.Admit(within(t), "pod", "main", gpu, 2)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff([]string{"b", "d"}, ids); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	got, err := k.StartContainer(within(t), "default", "pod", "main")
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff([]string{"example.com/gpu=b", "example.com/gpu=d"}, cdi(got)); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
}

// Neither an error nor a panic nor a short answer of Prefer fails the pod.
func TestPreferNeverFailsThePod(t *testing.T) {
	tests := map[string]func(_, _ []string, _ int) ([]string, error){
		"error":   func(_, _ []string, _ int) ([]string, error) { return []string{"a"}, errors.New("GPU is lost") },
		"panic":   func(_, _ []string, _ int) ([]string, error) { panic("bidirectional") },
		"short":   func(_, _ []string, _ int) ([]string, error) { return []string{"a"}, nil },
		"nothing": func(_, _ []string, _ int) ([]string, error) { return nil, nil },
		"strange": func(_, _ []string, _ int) ([]string, error) { return []string{"x", "y", "z"}, nil },
	}
	for name, prefer := range tests {
		t.Run(name, func(t *testing.T) {
			dir := kubelet.Dir(t)
			k := kubelet.Start(t, dir)
			r := newRack("a", "b", "c")
			r.prefer = prefer
			run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r}))
			k.Wait(within(t), gpu, serving(3))
			if ids, err := k.Admit(within(t), "pod", "main", gpu, 2); err != nil || len(ids) != 2 {
				t.Errorf("the pod got %v, %v", ids, err)
			}
		})
	}
}

func TestAllocateRejections(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a", "b")
	run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r}))
	k.Wait(within(t), gpu, serving(2))
	client := dialOnly(t, k)
	tests := []struct {
		name string
		ids  []string
		want string
	}{
		{"unknown", []string{"a", "GPU-9", "GPU-10"}, "rpc error: code = InvalidArgument desc = nvidia.com/gpu: device IDs that were never advertised here: GPU-10, GPU-9"},
		{"none", nil, "rpc error: code = InvalidArgument desc = nvidia.com/gpu: a request without device IDs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := client.Allocate(within(t), &v1beta1.AllocateRequest{
				ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: tt.ids}},
			})
			if err == nil || err.Error() != tt.want {
				t.Errorf("error\n got %v\nwant %s", err, tt.want)
			}
		})
	}

	r.allocate = func(context.Context, []string) error { panic("nil map") }
	if _, err := k.Admit(within(t), "pod", "main", gpu, 1); err == nil {
		t.Error("a panic in Allocate returns no error")
	}
	r.allocate = nil
	if _, err := k.Admit(within(t), "other", "main", gpu, 1); err != nil {
		t.Errorf("after a panic in Allocate: %v", err)
	}
}

func TestEveryStreamGetsTheFullListAndEachChange(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a", "b")
	run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r}))
	k.Wait(within(t), gpu, serving(2))
	client := dialOnly(t, k)
	first, second := watch(t, client), watch(t, client)
	want := []string{"a Healthy", "b Healthy"}
	for _, s := range []*stream{first, second} {
		if diff := gocmp.Diff(want, s.next(t)); diff != "" {
			t.Errorf("first list (-want +got):\n%s", diff)
		}
	}
	// The same list is not sent again: the next thing that any stream
	// receives is the change after it.
	before := k.State(gpu).Updates
	r.set("a", "b")
	r.set("a", "!b")
	for _, s := range []*stream{first, second} {
		if diff := gocmp.Diff([]string{"a Healthy", "b Unhealthy"}, s.next(t)); diff != "" {
			t.Errorf("change (-want +got):\n%s", diff)
		}
	}
	k.Wait(within(t), gpu, serving(1))
	if got := k.State(gpu).Updates - before; got != 1 {
		t.Errorf("the kubelet got %d lists for one change", got)
	}
}

// A stream that ends leaves nothing behind, and disturbs no other. The
// observer of streams receives its first list and its end.
func TestAStreamEndsWithItsContext(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a")
	streamed := notify.New()
	p := newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r, Changed: streamed})
	await := func(want int) {
		t.Helper()
		for p.Status().Streams != want {
			select {
			case <-streamed:
			case <-within(t).Done():
				t.Fatalf("%d streams, want %d", p.Status().Streams, want)
			}
		}
	}
	if n := p.Status().Streams; n != 0 {
		t.Errorf("%d streams before the plugin runs", n)
	}
	run(t, p)
	k.Wait(within(t), gpu, serving(1))
	client := dialOnly(t, k)
	ctx, cancel := context.WithCancel(t.Context())
	ending, err := client.ListAndWatch(ctx, &v1beta1.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ending.Recv(); err != nil {
		t.Fatal(err)
	}
	await(2)
	cancel()
	await(1)
	r.set("!a")
	k.Wait(within(t), gpu, serving(0))
}

func TestRunRejects(t *testing.T) {
	for _, name := range []string{"", "gpu", "kubernetes.io/gpu", "nvidia.com/", "requests.nvidia.com/gpu"} {
		p := newPlugin(server.Options{Name: name, KubeletDir: kubelet.Dir(t), Resource: newRack()})
		if err := p.Run(t.Context()); err == nil {
			t.Errorf("Run took the resource name %q", name)
		}
	}
}

// heddleSockets lists the sockets in the plugin directory but the kubelet's.
func heddleSockets(t *testing.T, k *kubelet.Kubelet) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(k.PluginDir(), "heddle-*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// squatAt listens on a path; what it returns stops that and leaves the file,
// as kill -9 does.
func squatAt(t *testing.T, path string) (kill func()) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	return func() { _ = l.Close() }
}

func itoa(fd uintptr) string { return strconv.Itoa(int(fd)) }

func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
