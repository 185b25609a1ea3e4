package server_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/test/kubelet"
)

// dialOnly connects to the only socket of a plugin.
func dialOnly(t *testing.T, k *kubelet.Kubelet) v1beta1.DevicePluginClient {
	t.Helper()
	paths := heddleSockets(t, k)
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

func watch(t *testing.T, client v1beta1.DevicePluginClient) *stream {
	t.Helper()
	s, err := client.ListAndWatch(within(t), &v1beta1.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return &stream{s}
}

// next receives a list as "ID Health".
func (s *stream) next(t *testing.T) []string {
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

// gathered lists every series as "name{label=value,...}"; of a histogram the
// count.
func gathered(t *testing.T, r prometheus.Registerer) map[string]float64 {
	t.Helper()
	gatherer, ok := r.(prometheus.Gatherer)
	if !ok {
		t.Fatal("no gatherer")
	}
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			series[family.GetName()+"{"+strings.Join(labels, ",")+"}"] = value
		}
	}
	return series
}
