package kubelet_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/kubelet/checkpoint"
)

func lister(t *testing.T, k *kubelet.Kubelet) podresources.PodResourcesListerClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+k.PodResourcesSocket(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return podresources.NewPodResourcesListerClient(conn)
}

func TestPodResourcesHidesInitContainersAndTheCheckpointDoesNot(t *testing.T) {
	k := kubelet.Start(t, kubelet.Dir(t))
	pod := kubelet.Pod{Namespace: "ns", Name: "a", UID: "u1", Containers: []kubelet.Container{
		{Name: "prepare", Kind: kubelet.Init}, {Name: "proxy", Kind: kubelet.Sidecar}, {Name: "main"},
	}}
	for _, container := range []string{"prepare", "proxy", "main"} {
		k.Assign(pod, container, "example.com/gpu", []string{container + "-0", container + "-1"}, nil)
	}
	resp, err := lister(t, k).List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	for _, p := range resp.PodResources {
		for _, c := range p.Containers {
			listed[p.Namespace+"/"+p.Name+"/"+c.Name] = len(c.Devices)
		}
	}
	if diff := cmp.Diff(map[string]int{"ns/a/proxy": 2, "ns/a/main": 2}, listed); diff != "" {
		t.Errorf("entries per container, one for each ID (-want +got):\n%s", diff)
	}
	data, err := checkpoint.Read(k.Checkpoint())
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string][]string{}
	for _, e := range data.Entries() {
		stored[e.PodUID+"/"+e.ContainerName] = e.DeviceIDs[-1]
	}
	want := map[string][]string{
		"u1/prepare": {"prepare-0", "prepare-1"}, "u1/proxy": {"proxy-0", "proxy-1"}, "u1/main": {"main-0", "main-1"},
	}
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Errorf("checkpoint (-want +got):\n%s", diff)
	}

	k.Restart()
	k.Delete("ns", "a")
	if resp, err = lister(t, k).List(t.Context(), &podresources.ListPodResourcesRequest{}); err != nil {
		t.Fatal(err)
	}
	if len(resp.PodResources) != 0 {
		t.Errorf("a deleted pod is listed: %v", resp.PodResources)
	}
}

func TestPodResourcesRejectsABurst(t *testing.T) {
	k := kubelet.Start(t, kubelet.Dir(t))
	client := lister(t, k)
	rejected := 0
	for range 100 {
		_, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
		if status.Code(err) == codes.ResourceExhausted {
			rejected++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	calls, counted := k.PodResourcesCalls()
	if calls != 100 || counted != rejected || rejected == 0 {
		t.Errorf("100 calls at once: %d seen, %d rejected by the limiter, %d by the caller's count", calls, counted, rejected)
	}
}

func TestPodResourcesMayBeSlow(t *testing.T) {
	k := kubelet.Start(t, kubelet.Dir(t))
	k.Disturb(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := lister(t, k).List(ctx, &podresources.ListPodResourcesRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a disturbed call answered %v", err)
	}
}

// The file of a real kubelet v1.37 (see testdata) is the proof that the
// The file was written by the checkpoint code of k8s.io/kubernetes v1.37.0.
func TestCheckpointOfARealKubelet(t *testing.T) {
	const path = "testdata/kubelet_internal_checkpoint"
	data, err := checkpoint.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(data.Entries()) == 0 {
		t.Error("no entries")
	}
	blob, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(blob), string(again)); diff != "" {
		t.Errorf("the format differs (-kubelet +ours):\n%s", diff)
	}
}
