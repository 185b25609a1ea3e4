//go:build cgo && linux

package deviceplugin

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/test/kubelet"
)

const (
	// settle is how long after its start the plugin is idle, quiet how long it is
	// watched then: six scans, and thirty questions whether GPUs are alive.
	settle = 30 * time.Second
	quiet  = time.Minute
)

// BenchmarkIdle weighs the plugin while nothing happens.
func BenchmarkIdle(b *testing.B) {
	p := start(b)
	for b.Loop() {
		wait(b, settle)
		before := p.processorTime(b)
		wait(b, quiet)
		b.ReportMetric((p.processorTime(b) - before).Seconds(), "cpu-s/min")
		b.ReportMetric(p.status(b, "RssAnon"), "anon-MB")
		b.ReportMetric(p.status(b, "VmRSS"), "rss-MB")
	}
}

func wait(b *testing.B, d time.Duration) {
	b.Helper()
	select {
	case <-b.Context().Done():
		b.Fatal(context.Cause(b.Context()))
	case <-time.After(d):
	}
}

// BenchmarkRegistration measures from the start of a kubelet, a little before its
// socket is there, until it has the GPUs.
func BenchmarkRegistration(b *testing.B) {
	p := start(b)
	var times []time.Duration
	for n := 2; b.Loop(); n++ {
		p.kubelet.Stop()
		begin := time.Now()
		p.kubelet.Up()
		p.await(b, func(s kubelet.State) bool { return s.Registrations >= n && len(s.Healthy) == 8 })
		times = append(times, time.Since(begin))
		// The plugin sees the end of one kubelet before the next one starts.
		wait(b, 50*time.Millisecond)
	}
	slices.Sort(times)
	b.ReportMetric(times[len(times)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(times[len(times)*99/100].Seconds()*1e3, "p99-ms")
}

// BenchmarkAllocate measures Allocate of one GPU, in turns with the least that any
// plugin in Go does: a process that looks the ID up in a map and answers with its
// CDI name and an environment variable.
func BenchmarkAllocate(b *testing.B) {
	p := start(b)
	sockets, err := filepath.Glob(filepath.Join(p.kubelet.PluginDir(), "heddle-nvidia.com_gpu-*.sock"))
	if err != nil || len(sockets) != 1 {
		b.Fatalf("sockets %v, %v", sockets, err)
	}
	ids := p.kubelet.State(gpus).Healthy
	ours, least := client(b, sockets[0]), client(b, leastPlugin(b, ids))
	var times, leastTimes []time.Duration
	for n := 0; b.Loop(); n++ {
		id := ids[n%len(ids)]
		times = append(times, allocate(b, ours, id))
		leastTimes = append(leastTimes, allocate(b, least, id))
	}
	slices.Sort(times)
	slices.Sort(leastTimes)
	for name, share := range map[string]int{"p50": 50, "p99": 99} {
		mine, other := times[len(times)*share/100], leastTimes[len(leastTimes)*share/100]
		b.ReportMetric(mine.Seconds()*1e6, name+"-us")
		b.ReportMetric(float64(mine)/float64(other), name+"-ratio")
	}
}

func allocate(b *testing.B, c v1beta1.DevicePluginClient, id string) time.Duration {
	b.Helper()
	begin := time.Now()
	_, err := c.Allocate(b.Context(), &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{id}}},
	})
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(begin)
}

// client connects as the kubelet does.
func client(b *testing.B, socket string) v1beta1.DevicePluginClient {
	b.Helper()
	conn, err := grpc.NewClient("passthrough:///"+socket, grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	api := v1beta1.NewDevicePluginClient(conn)
	if _, err := api.GetDevicePluginOptions(ctx, &v1beta1.Empty{}, grpc.WaitForReady(true)); err != nil {
		b.Fatal(err)
	}
	return api
}

// leastSocket and leastIDs make this program the other plugin.
const leastSocket, leastIDs = "HEDDLE_BENCH_SOCKET", "HEDDLE_BENCH_IDS"

func TestMain(m *testing.M) {
	if socket := os.Getenv(leastSocket); socket != "" {
		serveLeast(socket, strings.Split(os.Getenv(leastIDs), ","))
		return
	}
	os.Exit(m.Run()) //nolint:forbidigo // TestMain is a main.
}

// leastPlugin starts the other plugin and returns its socket.
func leastPlugin(b *testing.B, ids []string) string {
	b.Helper()
	socket := filepath.Join(kubelet.Dir(b), "least.sock")
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{leastSocket + "=" + socket, leastIDs + "=" + strings.Join(ids, ",")}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // It ends by the signal.
	})
	return socket
}

type least struct {
	v1beta1.UnimplementedDevicePluginServer
	ids map[string]bool
}

func serveLeast(socket string, ids []string) {
	l := &least{ids: map[string]bool{}}
	for _, id := range ids {
		l.ids[id] = true
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	s := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(s, l)
	panic(s.Serve(listener))
}

func (l *least) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (l *least) Allocate(_ context.Context, req *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	resp := &v1beta1.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		answer := &v1beta1.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}}
		for _, id := range c.GetDevicesIds() {
			if !l.ids[id] {
				return nil, os.ErrNotExist
			}
			answer.CdiDevices = append(answer.CdiDevices, &v1beta1.CDIDevice{Name: "vendor.com/gpu=" + id})
		}
		resp.ContainerResponses = append(resp.ContainerResponses, answer)
	}
	return resp, nil
}
