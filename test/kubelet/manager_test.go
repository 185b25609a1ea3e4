package kubelet_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/test/kubelet"
)

const gpu = "example.com/gpu"

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func started(t *testing.T, ids ...string) (*kubelet.Kubelet, *kubelet.OtherPlugin) {
	t.Helper()
	k := kubelet.Start(t, kubelet.Dir(t))
	s := kubelet.NewStranger(t, k, "gpu.sock", gpu, ids...)
	if err := s.Register(bounded(t)); err != nil {
		t.Fatal(err)
	}
	k.Wait(bounded(t), gpu, func(s kubelet.State) bool { return len(s.Healthy) == len(ids) })
	return k, s
}

func asks(name string, kind kubelet.Kind, n int) kubelet.Container {
	return kubelet.Container{Name: name, Kind: kind, Limits: map[string]int{gpu: n}}
}

// The app container takes over what the init container had, the sidecar keeps
// its own.
func TestDevicesOfInitContainersAreReused(t *testing.T) {
	k, _ := started(t, "a", "b", "c", "d")
	pod := kubelet.Pod{Namespace: "ns", Name: "p", UID: "u", Containers: []kubelet.Container{
		asks("sidecar", kubelet.Sidecar, 1), asks("prepare", kubelet.Init, 2), asks("main", kubelet.App, 3),
	}}
	if err := k.AdmitPod(bounded(t), pod); err != nil {
		t.Fatal(err)
	}
	sidecar, prepare, main := k.Held("u", "sidecar", gpu), k.Held("u", "prepare", gpu), k.Held("u", "main", gpu)
	for _, id := range prepare {
		if !slices.Contains(main, id) {
			t.Errorf("main has %v, without %s of prepare", main, id)
		}
	}
	if all := slices.Sorted(slices.Values(append(slices.Clone(main), sidecar...))); !slices.Equal(all, []string{"a", "b", "c", "d"}) {
		t.Errorf("sidecar has %v, main %v", sidecar, main)
	}
	got, err := k.StartContainer(bounded(t), "ns", "p", "prepare")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"DEVICES": strings.Join(prepare, ",")}, got.GetEnvs()); diff != "" {
		t.Errorf("environment of prepare (-want +got):\n%s", diff)
	}
}

func TestDevicesAreFreedWhenThePodIsGone(t *testing.T) {
	k, _ := started(t, "a", "b")
	if _, err := k.Admit(bounded(t), "one", "main", gpu, 2); err != nil {
		t.Fatal(err)
	}
	const want = "admit default/two: requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0"
	if _, err := k.Admit(bounded(t), "two", "main", gpu, 1); err == nil || err.Error() != want {
		t.Errorf("error\n got %v\nwant %s", err, want)
	}
	k.Delete("default", "one")
	if ids, err := k.Admit(bounded(t), "three", "main", gpu, 2); err != nil || len(ids) != 2 {
		t.Errorf("the next pod got %v, %v", ids, err)
	}
}

// A restarted kubelet knows who has what from its checkpoint, and nothing of
// the devices until the plugin registers.
func TestAllocationsOutliveTheKubelet(t *testing.T) {
	k, _ := started(t, "a", "b")
	ids, err := k.Admit(bounded(t), "one", "main", gpu, 1)
	if err != nil {
		t.Fatal(err)
	}
	k.Restart()
	want := kubelet.State{Registrations: 1, Updates: 1, Allocated: ids}
	if diff := cmp.Diff(want, k.State(gpu)); diff != "" {
		t.Errorf("after the restart (-want +got):\n%s", diff)
	}
	const rejection = "admit default/two: no healthy devices present; cannot allocate unhealthy devices example.com/gpu"
	if _, err := k.Admit(bounded(t), "two", "main", gpu, 1); err == nil || err.Error() != rejection {
		t.Errorf("error\n got %v\nwant %s", err, rejection)
	}
	if _, err := k.StartContainer(bounded(t), "default", "one", "main"); err != nil {
		t.Errorf("a container restarts: %v", err)
	}
}

// The fault of the real kubelet that makes plugins use a new path each time.
func TestASecondRegistrationFromTheSamePathLocksItOut(t *testing.T) {
	k, s := started(t, "a")
	if err := s.Register(bounded(t)); err == nil || !strings.Contains(err.Error(), "device plugin already connected") {
		t.Fatalf("the second registration: %v", err)
	}
	s.Stop()
	again := kubelet.NewStranger(t, k, "gpu.sock", gpu, "a")
	if err := again.Register(bounded(t)); err == nil || !strings.Contains(err.Error(), "device plugin already connected") {
		t.Fatalf("after the first connection ended: %v", err)
	}
	other := kubelet.NewStranger(t, k, "other.sock", gpu, "a")
	if err := other.Register(bounded(t)); err != nil {
		t.Errorf("from another path: %v", err)
	}
}
