package server_test

import (
	"errors"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/test/kubelet"
)

func TestMetrics(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	registry := prometheus.NewRegistry()
	r := newRack("a", "b", "!c")
	r.prefer = func(_, _ []string, _ int) ([]string, error) { return nil, errors.New("no matrix") }
	stop := run(t, newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r, Registerer: registry}))
	k.Wait(within(t), gpu, serving(2))
	if _, err := k.Admit(within(t), "pod", "main", gpu, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := k.StartContainer(within(t), "default", "pod", "main"); err != nil {
		t.Fatal(err)
	}
	if _, err := dialOnly(t, k).Allocate(within(t), &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{"x"}}},
	}); err == nil {
		t.Fatal("an unknown device was allocated")
	}
	r.set("a", "!b", "!c")
	k.Wait(within(t), gpu, serving(1))

	rpc := func(method, code string) string {
		return "heddle_resource_rpc_seconds{code=" + code + ",method=" + method + ",resource=nvidia.com/gpu}"
	}
	of := func(name string) string { return "heddle_resource_" + name + "{resource=nvidia.com/gpu}" }
	want := map[string]float64{
		rpc("GetDevicePluginOptions", "OK"): 1, rpc("GetPreferredAllocation", "OK"): 1, rpc("Allocate", "OK"): 1,
		rpc("Allocate", "InvalidArgument"): 1, rpc("PreStartContainer", "OK"): 1,
		of("capacity"): 3, of("allocatable"): 1, of("unhealthy"): 2, of("withdrawn"): 0, of("streams"): 1,
		of("registered"): 1, of("registrations_total"): 1, of("update_seconds"): 1, of("preference_failures_total"): 1,
	}
	until(t, "what the plugin counts later", func() bool {
		got := gathered(t, registry)
		return got[of("update_seconds")] > 0 && got[of("registered")] > 0
	})
	if diff := gocmp.Diff(want, gathered(t, registry)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}

	err := newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: newRack(), Registerer: registry}).Run(t.Context())
	if err == nil {
		t.Error("the same resource runs twice")
	}
	run(t, newPlugin(server.Options{Name: "rdma/hca", KubeletDir: dir, Resource: newRack(), Registerer: registry}))
	stop()
	for series := range gathered(t, registry) {
		if series == of("capacity") {
			t.Errorf("%s is there after the end", series)
		}
	}
}
