package resource_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/test/inventorytest"
	testkubelet "github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/machines"
)

// known are the pods that the API server would know.
type known struct {
	mu  sync.Mutex
	all map[string]*corev1.Pod
}

func (k *known) Pod(_ context.Context, p kubelet.Pod) (*corev1.Pod, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pod := k.all[p.Name]; pod != nil {
		return pod, nil
	}
	return nil, fmt.Errorf("%s is not known", p)
}

func (k *known) Watched(p kubelet.Pod) (pod *corev1.Pod, complete bool) {
	pod, _ = k.Pod(context.Background(), p)
	return pod, true
}

func (*known) WarnPod(kubelet.Pod, string, string) {}

func (k *known) add(name, vcore, vmemory string) testkubelet.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "default", name, types.UID("uid-"+name)
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		"nvidia.com/sgpu": quantity.MustParse("1"), "nvidia.com/vcore": quantity.MustParse(vcore),
		"nvidia.com/vmemory": quantity.MustParse(vmemory),
	}}}}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[name] = p
	return testkubelet.Pod{
		Namespace: "default", Name: name, UID: "uid-" + name,
		Containers: []testkubelet.Container{{Name: "main", Limits: map[string]int{slotsName: 1}}},
	}
}

// sharesHost is a node with a kubelet, the plugin of sgpu and its device state.
type sharesHost struct {
	*testkubelet.Kubelet
	*devicestate.State
	pods *known
}

func newHost(b *testing.B) *sharesHost {
	b.Helper()
	h := &sharesHost{Kubelet: testkubelet.Start(b, testkubelet.Dir(b)), pods: &known{all: map[string]*corev1.Pod{}}}
	m, c := machines.Load(b, "dgx-h100"), config.Default()
	c.Mode = config.ModeSGPU
	conn, err := kubelet.Dial(h.PodResourcesSocket())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	// The CDI directory is on a tmpfs, as /var/run/cdi; the state is on a disk.
	dir := b.TempDir()
	memory, err := os.MkdirTemp("/dev/shm", "cdi") //nolint:usetesting // TempDir is on a disk.
	if err != nil {
		memory = filepath.Join(dir, "cdi")
	}
	b.Cleanup(func() { _ = os.RemoveAll(memory) })
	inv := inventorytest.Configured(m, &c)
	for uuid, g := range inv.GPUs {
		g.CDIEdits = &specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia0"}}}
		inv.GPUs[uuid] = g
	}
	h.State = devicestate.New(devicestate.Options{
		NodeName: "gpu-1", API: h.pods, CDIDir: memory, StateDir: filepath.Join(dir, "state"),
		Kubelet: kubelet.NewReader(podresources.NewPodResourcesListerClient(conn), filepath.Dir(h.PluginDir()), time.Now),
	}, inv)
	p := server.New(server.Options{
		Name: slotsName, KubeletDir: filepath.Dir(h.PluginDir()), Log: slog.New(slog.DiscardHandler),
		Resource: resource.NewShares(resource.Options{Name: slotsName, State: h.State}, inventorytest.Configured(m, &c)),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	running.Go(func() { _ = h.Run(ctx) })
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	h.Wait(b.Context(), slotsName, func(s testkubelet.State) bool { return len(s.Healthy) == 128 })
	return h
}

// admit and start are what the kubelet does for one pod.
func (h *sharesHost) admit(b *testing.B, name, vcore, vmemory string) {
	b.Helper()
	if err := h.AdmitPod(b.Context(), h.pods.add(name, vcore, vmemory)); err != nil {
		b.Fatal(err)
	}
}

func (h *sharesHost) start(b *testing.B, name string) {
	b.Helper()
	if _, err := h.StartContainer(b.Context(), "default", name, "main"); err != nil {
		b.Error(err)
	}
}

// remove deletes a pod that has ended.
func (h *sharesHost) remove(name string) {
	h.pods.mu.Lock()
	delete(h.pods.all, name)
	h.pods.mu.Unlock()
	h.Delete("default", name)
}

// BenchmarkStartShare is PreStartContainer of one more pod on a node with 127
// consumers: 16 GPUs' worth of slots, each with its own share.
func BenchmarkStartShare(b *testing.B) {
	h := newHost(b)
	for i := range 127 {
		name := fmt.Sprintf("consumer-%d", i)
		h.admit(b, name, "6", "4")
		h.start(b, name)
	}
	var took []time.Duration
	limit := time.NewTicker(12 * time.Millisecond) // The kubelet takes 100 calls a second.
	defer limit.Stop()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		name := fmt.Sprintf("next-%d", i)
		h.admit(b, name, "6", "4")
		<-limit.C
		b.StartTimer()
		began := time.Now()
		h.start(b, name)
		took = append(took, time.Since(began))
		b.StopTimer()
		h.remove(name)
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkThousandShares is a thousand pods that are admitted one by one, as
// the kubelet does, started side by side, and gone: with 100 of them at a time
// on the node.
func BenchmarkThousandShares(b *testing.B) {
	const pods, live = 1000, 100
	var took time.Duration
	for b.Loop() {
		h := newHost(b)
		room := make(chan struct{}, live)
		began := time.Now()
		var all sync.WaitGroup
		for i := range pods {
			room <- struct{}{}
			name := fmt.Sprintf("pod-%d", i)
			h.admit(b, name, "5", "4")
			all.Go(func() {
				h.start(b, name)
				h.remove(name)
				<-room
			})
		}
		all.Wait()
		took += time.Since(began)
		calls, rejected := h.PodResourcesCalls()
		b.Logf("%d pods in %v, %d calls of PodResources, %d rejected", pods, time.Since(began), calls, rejected)
	}
	each := took.Seconds() / float64(pods*b.N)
	b.ReportMetric(1/each, "pods/s")
	b.ReportMetric(each*1000, "ms/pod")
}
