package server_test

import (
	"context"
	"errors"
	"testing"
	"time"

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

// All states of a GPU that is removed: withdrawn while a pod holds it, kept in
// the list, and rejected for others. That it is removed after a minute is in
// TestAnIDOnceAdvertisedStaysListed.
func TestAResourceWithoutDevicesIsServedWhilePodsHoldThem(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a", "b")
	p := newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r})
	p.SetHolders(map[string]bool{"b": true}, time.Now(), nil)
	run(t, p)
	k.Wait(within(t), gpu, serving(2))
	r.prefer = func(_, _ []string, _ int) ([]string, error) { return []string{"b"}, nil }
	if _, err := k.Admit(within(t), "pod", "main", gpu, 1); err != nil {
		t.Fatal(err)
	}
	r.set()
	s := k.Wait(within(t), gpu, serving(0))
	if diff := gocmp.Diff([]string{"a", "b"}, s.Unhealthy); diff != "" {
		t.Errorf("listed and unhealthy (-want +got):\n%s", diff)
	}
	until(t, "the registration", func() bool { return p.Status().Registered })
	if s := p.Status(); s.Capacity != 2 || s.Withdrawn != 2 {
		t.Errorf("status %+v", s)
	}
	// The container restarts: its devices are the same.
	got, err := k.StartContainer(within(t), "default", "pod", "main")
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff([]string{"example.com/gpu=b"}, cdi(got)); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	if _, err := k.Admit(within(t), "other", "main", gpu, 1); err == nil {
		t.Error("a withdrawn device was given to another pod")
	}
}

// A device is withdrawn while the kubelet's Allocate for it is in flight: a
// list without it would make the kubelet dereference nil (the fake kubelet
// fails the test then).
func TestADeviceIsWithdrawnDuringAllocate(t *testing.T) {
	dir := kubelet.Dir(t)
	k := kubelet.Start(t, dir)
	r := newRack("a")
	ctx := within(t)
	r.allocate = func(context.Context, []string) error {
		r.set()
		k.Wait(ctx, gpu, serving(0))
		return nil
	}
	p := newPlugin(server.Options{Name: gpu, KubeletDir: dir, Resource: r})
	p.SetHolders(nil, time.Now(), nil)
	run(t, p)
	k.Wait(within(t), gpu, serving(1))
	if ids, err := k.Admit(within(t), "pod", "main", gpu, 1); err != nil || len(ids) != 1 {
		t.Errorf("the pod got %v, %v", ids, err)
	}
}
