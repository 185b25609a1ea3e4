//go:build e2e && linux

package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// foreign is a device plugin of somebody else.
type foreign struct {
	v1beta1.UnimplementedDevicePluginServer
	devices []*v1beta1.Device
}

func (*foreign) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (f *foreign) ListAndWatch(
	_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse],
) error {
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: f.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// foreign serves a resource on the node's kubelet, until the function that it
// returns is called.
func (r *rig) foreign(t *testing.T, socket, resource string, ids ...string) (stop func()) {
	t.Helper()
	f := &foreign{}
	for _, id := range ids {
		f.devices = append(f.devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
	}
	dir := r.NodeDir("/var/lib/kubelet/device-plugins")
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, f)
	go func() { _ = server.Serve(listener) }()
	stop = sync.OnceFunc(server.Stop)
	t.Cleanup(stop)
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = v1beta1.NewRegistrationClient(conn).Register(t.Context(), &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: socket, ResourceName: resource,
	})
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// unready is the body of /readyz while it answers 503.
func (r *rig) unready(t *testing.T) string {
	t.Helper()
	_, err := r.get(t.Context(), "/readyz")
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		t.Fatalf("readyz: %v", err)
	}
	return fmt.Sprint(status.ErrStatus.Details.Causes)
}

// TestForeignPlugin: a resource that somebody else serves is left to him, by
// name, until he has gone for half a minute, or --takeover says otherwise.
func TestForeignPlugin(t *testing.T) {
	r := failing(t)
	if err := r.plugin.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := r.plugin.log.mark()
	stop := r.foreign(t, "nvidia-gpu.sock", gpuResource, "GPU-a", "GPU-b", "GPU-c")
	r.waitAllocatable(t, gpuResource, 3, 20*time.Second)
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitLog(t, mark, "the resource is left to somebody else", 10*time.Second)
	if !strings.Contains(r.plugin.log.since(mark), "owner=device-plugins/nvidia-gpu.sock") {
		t.Error("the log does not name the other plugin")
	}
	// The rest is served.
	r.waitRegistrations(t, mark, 1, 10*time.Second)
	if out := r.unready(t); !strings.Contains(out, "nvidia.com/gpu is served by device-plugins/nvidia-gpu.sock") {
		t.Errorf("readyz: %s", out)
	}
	pause(t, 6*time.Second) // Longer than the plugin's poll.
	if got := registrations(r.plugin.log.since(mark)); got != 1 || r.allocatable(t, gpuResource) != 3 {
		t.Fatalf("%d registrations, %d GPUs; want that of HCAs alone, and the other's GPUs", got, r.allocatable(t, gpuResource))
	}

	stop()
	gone := time.Now()
	r.waitRegistrations(t, mark, resources, 60*time.Second)
	t.Logf("taken over %.1f s after the other plugin went", time.Since(gone).Seconds())
	r.waitAllocatable(t, gpuResource, 8, 30*time.Second)
	r.lands(t, "own")
	r.consistent(t)
	r.remove(t, "own")

	if err := r.plugin.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.foreign(t, "nvidia-gpu.sock", gpuResource, "GPU-a", "GPU-b", "GPU-c")
	r.waitAllocatable(t, gpuResource, 3, 30*time.Second)
	r.plugin.extra = []string{"--takeover"}
	t.Cleanup(func() {
		r.plugin.extra = nil
		if err := r.plugin.stop(r.ctx(t)); err != nil {
			t.Error(err)
		}
	})
	mark = r.plugin.log.mark()
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitRegistrations(t, mark, resources, 5*time.Second)
	r.waitLog(t, mark, "the resource is taken over from somebody else", 5*time.Second)
	r.waitAllocatable(t, gpuResource, 8, 30*time.Second)
	r.lands(t, "taken")
	r.consistent(t)
}
