package server_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/test/kubelet"
)

func podResources(t *testing.T, k *kubelet.Kubelet) podresources.PodResourcesListerClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+k.PodResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return podresources.NewPodResourcesListerClient(conn)
}

type watcherPlugin struct {
	registration.UnimplementedRegistrationServer
	resource string
}

func (w watcherPlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DevicePlugin, Name: w.resource}, nil
}

func TestConflictInPluginsRegistry(t *testing.T) {
	dir := kubelet.Dir(t)
	registry := filepath.Join(dir, "plugins_registry")
	if err := os.MkdirAll(registry, 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(registry, "reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	registrar := grpc.NewServer()
	registration.RegisterRegistrationServer(registrar, watcherPlugin{resource: "rdma/hca"})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = registrar.Serve(l)
	}()
	defer func() { registrar.Stop(); <-done }()
	for resource, want := range map[string]string{"rdma/hca": "plugins_registry/reg.sock", "rdma/other": ""} {
		if got, err := server.Conflict(t.Context(), dir, resource, nil); got != want || err != nil {
			t.Errorf("%s: owner %q, %v; want %q", resource, got, err, want)
		}
	}
}

// Another plugin is found by what the kubelet has. Neither heddle's own plugin nor
// another heddle process is a conflict.
func TestConflictByAllocatable(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	look := conflictIn(dir, gpu, podResources(t, k))
	stop := run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: newRack("a", "b")}))
	k.Wait(within(t), gpu, serving(2))
	if got, err := look(t.Context()); got != "" || err != nil {
		t.Errorf("our own plugin is a conflict: %q, %v", got, err)
	}
	stop()
	k.Wait(within(t), gpu, serving0)
	if got, err := look(t.Context()); got != "" || err != nil {
		t.Errorf("a conflict without another plugin: %q, %v", got, err)
	}
	foreign(t, k, "dp.sock", "a", "b")
	const want = "another device plugin (sockets: dp.sock)"
	if got, err := look(t.Context()); got != want || err != nil {
		t.Errorf("owner %q, %v; want %q", got, err, want)
	}
}

func TestAForeignPluginIsLeftAlone(t *testing.T) {
	const owner = "another device plugin (sockets: nvidia-gpu.sock)"
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	foreign(t, k, "nvidia-gpu.sock", "x")
	options := server.Options{
		Name: gpu, KubeletDir: dir, Resource: newRack("a", "b"), Registerer: prometheus.NewRegistry(),
		PodResources: podResources(t, k),
	}
	p := newPlugin(options)
	stop := run(t, p)
	until(t, "the owner", func() bool { return p.Status().Owner != "" })
	want := server.Status{Owner: owner, Capacity: 2, Allocatable: 2}
	if diff := cmp.Diff(want, p.Status()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if s := k.State(gpu); s.Registrations != 1 || len(heddleSockets(t, k)) != 0 {
		t.Errorf("the kubelet has %+v, the plugin's sockets are %v", s, heddleSockets(t, k))
	}
	series := "heddle_resource_claimed{owner=" + owner + ",resource=nvidia.com/gpu}"
	if got := gathered(t, options.Registerer)[series]; got != 1 {
		t.Errorf("%s is %v", series, got)
	}
	stop()
}

// With the API server away it is not known whether a DeviceClass claims the
// resource; devices are served all the same.
func TestAnUnknownOwnerIsNobody(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	pods := podResources(t, k)
	k.Disturb(func(context.Context, string) error { return errors.New("down") })
	run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: newRack("a"), PodResources: pods}))
	k.Wait(within(t), gpu, serving(1))
}

// conflictIn asks for another plugin of a resource.
func conflictIn(
	dir, resource string, pods podresources.PodResourcesListerClient,
) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return server.Conflict(ctx, dir, resource, pods) }
}

// A plugin that has ended may be in the kubelet's answers for a moment: the process that
// takes over from another one must not leave its own resource to it.
func TestAPluginThatHasJustEndedIsNoConflict(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	// Of another resource, as every node has some.
	kubelet.NewStranger(t, k, "fuse.sock", "example.com/fuse", "f")
	ending := foreign(t, k, "dp.sock", "a", "b")
	asked := 0
	k.Disturb(func(ctx context.Context, _ string) error {
		if asked++; asked == 2 {
			ending.Stop()
			k.Wait(ctx, gpu, serving0)
		}
		return nil
	})
	if got, err := conflictIn(dir, gpu, podResources(t, k))(t.Context()); got != "" || err != nil {
		t.Errorf("owner %q, %v", got, err)
	}
}

// foreign serves and registers another plugin for the GPU resource.
func foreign(t *testing.T, k *kubelet.Kubelet, socket string, ids ...string) *kubelet.OtherPlugin {
	t.Helper()
	other := kubelet.NewStranger(t, k, socket, gpu, ids...)
	if err := other.Register(within(t)); err != nil {
		t.Fatal(err)
	}
	k.Wait(within(t), gpu, serving(len(ids)))
	return other
}

func serving0(s kubelet.State) bool { return s.Connected == 0 }
