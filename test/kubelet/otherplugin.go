package kubelet

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// OtherPlugin is a device plugin that is not heddle's: healthy devices without
// topology, one list, no preference, no PreStartContainer. Allocate answers
// with the IDs in the variable DEVICES.
type OtherPlugin struct {
	v1beta1.UnimplementedDevicePluginServer
	k                *Kubelet
	socket, resource string
	devices          []*v1beta1.Device
	stop             func()
}

// NewStranger serves a resource on a socket in the plugin directory, without
// registering.
func NewStranger(tb testing.TB, k *Kubelet, socket, resource string, ids ...string) *OtherPlugin {
	tb.Helper()
	s := &OtherPlugin{k: k, socket: socket, resource: resource}
	for _, id := range ids {
		s.devices = append(s.devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
	}
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", filepath.Join(k.PluginDir(), socket))
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	s.stop = func() {
		server.Stop()
		serving.Wait()
	}
	tb.Cleanup(s.stop)
	return s
}

// Register registers with the kubelet, and returns the kubelet's answer.
func (s *OtherPlugin) Register(ctx context.Context) error {
	conn, err := dial(s.k.Socket())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: s.socket, ResourceName: s.resource,
	})
	return err
}

// Stop ends the plugin and removes its socket.
func (s *OtherPlugin) Stop() { s.stop() }

// GetDevicePluginOptions asks for nothing.
func (s *OtherPlugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch sends one list.
func (s *OtherPlugin) ListAndWatch(
	_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse],
) error {
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: s.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate names the devices in the environment.
func (s *OtherPlugin) Allocate(_ context.Context, req *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	resp := &v1beta1.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		resp.ContainerResponses = append(resp.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"DEVICES": strings.Join(slices.Sorted(slices.Values(c.GetDevicesIds())), ",")},
		})
	}
	return resp, nil
}
