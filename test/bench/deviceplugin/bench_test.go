//go:build cgo && linux

package deviceplugin

import (
	"context"
	"net"
	"path/filepath"
	"slices"
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

// BenchmarkIdle weighs the plugin while nothing happens, beside the least one.
func BenchmarkIdle(b *testing.B) {
	ours, least := start(b), startLeast(b)
	for b.Loop() {
		wait(b, settle)
		before, leastBefore := ours.processorTime(b), least.processorTime(b)
		wait(b, quiet)
		b.ReportMetric((ours.processorTime(b) - before).Seconds(), "cpu-s/min")
		b.ReportMetric((least.processorTime(b) - leastBefore).Seconds(), "least-cpu-s/min")
		b.ReportMetric(ours.status(b, "RssAnon"), "anon-MB")
		b.ReportMetric(least.status(b, "RssAnon"), "least-anon-MB")
		b.ReportMetric(ours.status(b, "VmRSS"), "rss-MB")
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
// socket is there, until it has the GPUs, in turns with the least plugin.
func BenchmarkRegistration(b *testing.B) {
	ours, least := start(b), startLeast(b)
	var times, leastTimes []time.Duration
	for n := 2; b.Loop(); n++ {
		times = append(times, ours.restart(b, n))
		leastTimes = append(leastTimes, least.restart(b, n))
	}
	report(b, times, leastTimes, time.Millisecond, "ms")
}

// restart starts the kubelet again and returns when it has the GPUs for the nth time.
func (p *plugin) restart(b *testing.B, n int) time.Duration {
	b.Helper()
	p.kubelet.Stop()
	// The plugin sees the end of one kubelet before the next one starts.
	wait(b, 50*time.Millisecond)
	begin := time.Now()
	p.kubelet.Up()
	p.await(b, func(s kubelet.State) bool { return s.Registrations >= n && len(s.Healthy) == 8 })
	return time.Since(begin)
}

// report gives the percentiles of the times, and their ratios to the least plugin's.
func report(b *testing.B, times, leastTimes []time.Duration, unit time.Duration, name string) {
	b.Helper()
	slices.Sort(times)
	slices.Sort(leastTimes)
	for percentile, share := range map[string]int{"p50": 50, "p99": 99} {
		mine, other := times[len(times)*share/100], leastTimes[len(leastTimes)*share/100]
		b.ReportMetric(float64(mine)/float64(unit), percentile+"-"+name)
		b.ReportMetric(float64(other)/float64(unit), "least-"+percentile+"-"+name)
		b.ReportMetric(float64(mine)/float64(other), percentile+"-ratio")
	}
}

// BenchmarkAllocate measures Allocate of one GPU, in turns with the least that any
// plugin in Go does: a process that looks the ID up in a map and answers with its
// CDI name and an environment variable.
func BenchmarkAllocate(b *testing.B) {
	p, other := start(b), startLeast(b)
	ids, leastIDs := p.kubelet.State(gpus).Healthy, other.kubelet.State(gpus).Healthy
	ours, least := client(b, p.socket(b, "heddle-nvidia.com_gpu-*.sock")), client(b, other.socket(b, "least-*.sock"))
	var times, leastTimes []time.Duration
	for n := 0; b.Loop(); n++ {
		times = append(times, allocate(b, ours, ids[n%len(ids)]))
		leastTimes = append(leastTimes, allocate(b, least, leastIDs[n%len(leastIDs)]))
	}
	report(b, times, leastTimes, time.Microsecond, "us")
}

// socket is the plugin's own.
func (p *plugin) socket(b *testing.B, pattern string) string {
	b.Helper()
	sockets, err := filepath.Glob(filepath.Join(p.kubelet.PluginDir(), pattern))
	if err != nil || len(sockets) != 1 {
		b.Fatalf("sockets %v, %v", sockets, err)
	}
	return sockets[0]
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
