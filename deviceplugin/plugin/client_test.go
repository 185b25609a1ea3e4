package plugin_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/test/kubelet"
)

// dialOnly connects to the only socket of a plugin.
func dialOnly(t testing.TB, k *kubelet.Kubelet) v1beta1.DevicePluginClient {
	t.Helper()
	paths := ours(t, k)
	if len(paths) != 1 {
		t.Fatalf("sockets: %v", paths)
	}
	conn, err := grpc.NewClient("unix://"+paths[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return v1beta1.NewDevicePluginClient(conn)
}

type stream struct {
	grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]
}

func watch(t testing.TB, client v1beta1.DevicePluginClient) *stream {
	t.Helper()
	s, err := client.ListAndWatch(within(t), &v1beta1.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return &stream{s}
}

// next receives a list as "ID Health".
func (s *stream) next(t testing.TB) []string {
	t.Helper()
	resp, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range resp.GetDevices() {
		list = append(list, d.GetID()+" "+d.GetHealth())
	}
	return list
}
