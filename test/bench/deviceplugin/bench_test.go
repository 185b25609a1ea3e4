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
	// warmUp is how long after its start the plugin is idle, quiet how long it is
	// watched then: six scans, and thirty questions whether GPUs are alive.
	warmUp = 30 * time.Second
	quiet  = time.Minute
)

// BenchmarkIdle weighs the plugin while nothing happens, beside NVIDIA's.
func BenchmarkIdle(b *testing.B) {
	all := []contender{
		{"", start(b, dgx(b))}, {"nvidia-", startNVIDIA(b, gpusAlone(b))},
	}
	for b.Loop() {
		wait(b, warmUp)
		var before []time.Duration
		for _, c := range all {
			before = append(before, c.processorTime(b))
		}
		wait(b, quiet)
		var seconds, anon []float64
		for i, c := range all {
			seconds = append(seconds, (c.processorTime(b)-before[i]).Seconds()/quiet.Minutes())
			anon = append(anon, c.status(b, "RssAnon"))
			b.ReportMetric(seconds[i], c.name+"cpu-s/min")
			b.ReportMetric(anon[i], c.name+"anon-MB")
			b.ReportMetric(c.status(b, "VmRSS"), c.name+"rss-MB")
			if i > 0 {
				b.ReportMetric(seconds[0]/seconds[i], c.name+"cpu-ratio")
				b.ReportMetric(anon[0]/anon[i], c.name+"anon-ratio")
			}
		}
	}
}

// contender is a plugin, by the prefix of its metrics.
type contender struct {
	name string
	*plugin
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
// socket is there, until it has the GPUs, in turns with NVIDIA's plugin: of the
// plugin on a machine with GPUs alone, as NVIDIA's serves no others, and on one with HCAs.
func BenchmarkRegistration(b *testing.B) {
	all := []contender{
		{"", start(b, gpusAlone(b))},
		{"nvidia-", startNVIDIA(b, gpusAlone(b))},
		{"hcas-", start(b, dgx(b))},
	}
	times := map[string][]time.Duration{}
	for n := 2; b.Loop(); n++ {
		for _, c := range all {
			times[c.name] = append(times[c.name], c.restart(b, n))
		}
	}
	report(b, times, time.Millisecond, "ms")
}

// restart starts the kubelet again and returns when it has the GPUs for the nth time.
func (p *plugin) restart(b *testing.B, n int) time.Duration {
	b.Helper()
	p.kubelet.Stop()
	// The plugin sees the end of one kubelet before the next one starts.
	wait(b, 50*time.Millisecond)
	begin := time.Now()
	p.kubelet.Up()
	p.await(b, func(s kubelet.State) bool { return s.Registrations >= n && len(s.Healthy) == p.gpus })
	return time.Since(begin)
}

// report gives the percentiles of each contender's times, and those of heddle to the others'.
func report(b *testing.B, times map[string][]time.Duration, unit time.Duration, name string) {
	b.Helper()
	for percentile, share := range map[string]int{"p50-": 50, "p99-": 99} {
		of := map[string]time.Duration{}
		for plugin, all := range times {
			slices.Sort(all)
			of[plugin] = all[len(all)*share/100]
			b.ReportMetric(float64(of[plugin])/float64(unit), plugin+percentile+name)
		}
		for plugin := range of {
			if plugin != "" {
				b.ReportMetric(float64(of[""])/float64(of[plugin]), plugin+percentile+"ratio")
			}
		}
	}
}

// asked is a contender and what the kubelet asks it.
type asked struct {
	contender
	v1beta1.DevicePluginClient
	ids []string
}

func ask(b *testing.B, name, socket string, p *plugin) asked {
	b.Helper()
	return asked{contender{name, p}, client(b, p.socket(b, socket)), p.kubelet.State(gpus).Healthy}
}

// BenchmarkAllocate measures Allocate of one GPU, in turns with NVIDIA's plugin.
func BenchmarkAllocate(b *testing.B) {
	all := []asked{
		ask(b, "", ownSocket, start(b, dgx(b))),
		ask(b, "nvidia-", nvidiaSocket, startNVIDIA(b, gpusAlone(b))),
	}
	times := map[string][]time.Duration{}
	for n := 0; b.Loop(); n++ {
		for _, c := range all {
			id := c.ids[n%len(c.ids)]
			times[c.name] = append(times[c.name], timed(b, func() error { return c.allocate(b, id) }))
		}
	}
	report(b, times, time.Microsecond, "us")
}

// BenchmarkAdmission measures what a kubelet asks before it admits a pod with one GPU: which one of
// those that are free, and for its devices.
func BenchmarkAdmission(b *testing.B) {
	all := []asked{ask(b, "", ownSocket, start(b, dgx(b))), ask(b, "nvidia-", nvidiaSocket, startNVIDIA(b, gpusAlone(b)))}
	times := map[string][]time.Duration{}
	for b.Loop() {
		for _, c := range all {
			times[c.name] = append(times[c.name], timed(b, func() error { return c.admit(b) }))
		}
	}
	report(b, times, time.Microsecond, "us")
}

const (
	ownSocket    = "heddle-nvidia.com_gpu-*.sock"
	nvidiaSocket = "nvidia-gpu.sock"
	// pause is between two pods: a kubelet's call meets a plugin that has done nothing for a while,
	// and what the last call left behind is not in its time.
	pause = 2 * time.Millisecond
)

func timed(b *testing.B, call func() error) time.Duration {
	b.Helper()
	wait(b, pause)
	begin := time.Now()
	err := call()
	took := time.Since(begin)
	if err != nil {
		b.Fatal(err)
	}
	return took
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

func (c asked) allocate(b *testing.B, ids ...string) error {
	b.Helper()
	_, err := c.Allocate(b.Context(), &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	return err
}

// admit asks which one of all GPUs, and for that one.
func (c asked) admit(b *testing.B) error {
	b.Helper()
	preferred, err := c.GetPreferredAllocation(b.Context(), &v1beta1.PreferredAllocationRequest{
		ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: c.ids, AllocationSize: 1}},
	})
	if err != nil {
		return err
	}
	return c.allocate(b, preferred.GetContainerResponses()[0].GetDeviceIDs()...)
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
