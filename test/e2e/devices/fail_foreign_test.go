//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	reported "github.com/heddle-dev/heddle/deviceplugin/report"
)

// foreign is a device plugin that is not heddle's. A container gets the node of the GPU
// whose UUID its device ID begins with, as by NVIDIA's plugin with passDeviceSpecs.
type foreign struct {
	v1beta1.UnimplementedDevicePluginServer
	devices []*v1beta1.Device
	nodes   map[string]*v1beta1.DeviceSpec
}

func (f *foreign) Allocate(_ context.Context, asked *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	answer := &v1beta1.AllocateResponse{}
	for _, container := range asked.GetContainerRequests() {
		one := &v1beta1.ContainerAllocateResponse{Envs: map[string]string{
			"NVIDIA_VISIBLE_DEVICES": strings.Join(container.GetDevicesIds(), ","),
		}}
		for _, id := range container.GetDevicesIds() {
			uuid, _, _ := strings.Cut(id, "::")
			one.Devices = append(one.Devices, f.nodes[uuid])
		}
		answer.ContainerResponses = append(answer.ContainerResponses, one)
	}
	return answer, nil
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
	f := &foreign{nodes: map[string]*v1beta1.DeviceSpec{}}
	m := r.machine(t)
	for i := range m.GPUs {
		f.nodes[m.GPUs[i].UUID] = &v1beta1.DeviceSpec{
			HostPath: filepath.Join(r.dir, "gpus", m.GPUs[i].UUID), Permissions: "rw",
			ContainerPath: fmt.Sprint("/dev/nvidia", m.GPUs[i].Index),
		}
	}
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

// TestForeignPlugin: a resource that another plugin serves is left to it, by
// name, until it is away for half a minute, or --takeover is set.
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
	r.waitLog(t, mark, "leaving the resource to a conflicting plugin", 10*time.Second)
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
	r.waitLog(t, mark, "taking the resource over from a conflicting plugin", 5*time.Second)
	r.waitAllocatable(t, gpuResource, 8, 30*time.Second)
	r.lands(t, "taken")
	r.consistent(t)
}

// TestDeviceClassThatClaimsTheResource: where a DeviceClass stands for the
// resource, the scheduler has its requests met by DRA, and a device plugin
// would hand out the same devices a second time. heddle does not register it, reports
// why, and serve it once the class has gone.
func TestDeviceClassThatClaimsTheResource(t *testing.T) {
	r := failing(t)
	if err := r.plugin.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := gpuResource
	classes := r.client.ResourceV1().DeviceClasses()
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "whole-gpus"},
		Spec:       resourcev1.DeviceClassSpec{ExtendedResourceName: &name},
	}
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := sync.OnceValue(func() error { return classes.Delete(r.ctx(t), class.Name, metav1.DeleteOptions{}) })
	t.Cleanup(func() { _ = gone() })

	const owner = "DeviceClass whole-gpus (spec.extendedResourceName)"
	mark := r.plugin.log.mark()
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitLog(t, mark, "leaving the resource to a conflicting plugin", 10*time.Second)
	r.waitRegistrations(t, mark, 1, 10*time.Second) // HCAs are served.
	r.waitCondition(t, corev1.ConditionFalse, string(publish.ServedByOthers), gpuResource+": it is left to "+owner)
	r.waitUnavailable(t, gpuResource, string(publish.ServedByOthers), 1)
	want := fmt.Sprintf("heddle_resource_claimed{owner=%q,resource=%q} 1", owner, gpuResource)
	if lines := r.metrics(t, "heddle_resource_claimed"); !slices.Contains(lines, want) {
		t.Errorf("metrics have %q, want %q", lines, want)
	}
	if out := r.unready(t); !strings.Contains(out, gpuResource+" is served by "+owner) {
		t.Errorf("readyz: %s", out)
	}
	if served := r.served(t, gpuResource); served.Registered || served.Owner != owner {
		t.Errorf("doctor gets %+v", served)
	}
	r.waitAllocatable(t, gpuResource, 0, 30*time.Second)
	if got := registrations(r.plugin.log.since(mark)); got != 1 {
		t.Errorf("%d registrations, want that of HCAs alone", got)
	}

	if err := gone(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	r.waitRegistrations(t, mark, resources, 3*time.Minute)
	t.Logf("served %.0f s after the DeviceClass went", time.Since(begin).Seconds())
	r.waitAllocatable(t, gpuResource, 8, 30*time.Second)
	r.waitCondition(t, corev1.ConditionTrue, health.ConditionReady, "")
	r.lands(t, "own")
	r.consistent(t)
}

// served is what the plugin reports to doctor about a resource.
func (r *rig) served(t *testing.T, name string) reported.Resource {
	t.Helper()
	text, err := r.get(t.Context(), reported.Path)
	if err != nil {
		t.Fatal(err)
	}
	var all reported.Report
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	for _, one := range all.Resources {
		if one.Name == name {
			return one
		}
	}
	t.Fatalf("nothing is reported of %s: %s", name, text)
	return reported.Resource{}
}
