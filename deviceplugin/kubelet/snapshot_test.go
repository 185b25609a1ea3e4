package kubelet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func listedPod(name string, containers ...*podresources.ContainerResources) *podresources.PodResources {
	return &podresources.PodResources{Namespace: "ns", Name: name, Containers: containers}
}

// container "c" has one ContainerDevices for each ID, as the kubelet sends it.
func container(held map[string][]string) *podresources.ContainerResources {
	c := &podresources.ContainerResources{Name: "c"}
	for resource, ids := range held {
		for _, id := range ids {
			c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
		}
	}
	return c
}

func TestJoin(t *testing.T) {
	type held = map[string][]string
	for _, tt := range []struct {
		name    string
		pods    []*podresources.PodResources
		entries []entry
		want    []string
	}{
		{
			"one device an entry",
			[]*podresources.PodResources{listedPod("a", container(held{"r": {"2", "1", "2"}}))},
			nil,
			[]string{"ns/a//c r [1 2] [] false"},
		},
		{
			"the checkpoint knows UID and name",
			[]*podresources.PodResources{listedPod("a", container(held{"r": {"1"}, "s": {"x"}}))},
			[]entry{{"u", "c", "r", []string{"1"}, []string{"n"}}},
			[]string{"ns/a/u/c r [1] [n] true", "ns/a/u/c s [x] [] false"},
		},
		{
			"an init container with devices of the next",
			[]*podresources.PodResources{listedPod("a", container(held{"r": {"1", "2"}}))},
			[]entry{{"u", "i", "r", []string{"1"}, []string{"m"}}, {"u", "c", "r", []string{"1", "2"}, []string{"n"}}},
			[]string{"ns/a/u/c r [1 2] [n] true", "ns/a/u/i r [1] [m] true"},
		},
		{
			"an init container alone",
			[]*podresources.PodResources{listedPod("a", container(nil))},
			[]entry{{"u", "i", "r", []string{"1"}, []string{"m"}}},
			[]string{"/u/i r [1] [m] true"},
		},
		{
			"a deleted pod, and another pod with its device",
			[]*podresources.PodResources{listedPod("b", container(held{"r": {"1"}}))},
			[]entry{{"old", "c", "r", []string{"1", "2"}, []string{"m"}}},
			[]string{"ns/b//c r [1] [] false"},
		},
		{
			"the same ID in two resources",
			[]*podresources.PodResources{listedPod("a", container(held{"r": {"1"}})), listedPod("b", container(held{"s": {"1"}}))},
			[]entry{{"u", "c", "s", []string{"1"}, []string{"m"}}, {"v", "c", "r", []string{"1"}, []string{"n"}}},
			[]string{"ns/a/v/c r [1] [n] true", "ns/b/u/c s [1] [m] true"},
		},
		{"none", nil, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, h := range join(tt.pods, tt.entries) {
				name := fmt.Sprintf("%s/%s/%s", h.Namespace, h.Pod.Name, h.UID)
				if h.Pod.Name == "" {
					name = "/" + h.UID
				}
				got = append(got, fmt.Sprintf("%s/%s %s %v %v %v", name, h.Name, h.Resource, h.IDs, h.CDINames, h.Checkpointed))
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("allocations (-want +got):\n%s", diff)
			}
		})
	}
}

// A container is found after other pods and after another container of its pod.
func TestCPUs(t *testing.T) {
	of := func(name string, cpus ...int64) *podresources.ContainerResources {
		return &podresources.ContainerResources{Name: name, CpuIds: cpus}
	}
	s := NewSnapshot([]*podresources.PodResources{listedPod("a", of("c", 1)), listedPod("b", of("x", 2), of("c", 3))})
	if diff := cmp.Diff([]int64{3}, s.CPUs(Container{Pod{Namespace: "ns", Name: "b"}, "c"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// script answers List by a function, and counts.
type script struct {
	podresources.PodResourcesListerClient
	mu     sync.Mutex
	calls  int
	answer func(call int) (*podresources.ListPodResourcesResponse, error)
}

func (s *script) List(context.Context, *podresources.ListPodResourcesRequest, ...grpc.CallOption) (
	*podresources.ListPodResourcesResponse, error,
) {
	s.mu.Lock()
	s.calls++
	call := s.calls
	s.mu.Unlock()
	return s.answer(call)
}

func response(call int) *podresources.ListPodResourcesResponse {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{listedPod(fmt.Sprint(call))}}
}

func TestOneListServesAllThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{answer: func(call int) (*podresources.ListPodResourcesResponse, error) {
			time.Sleep(time.Second) //nolint:forbidigo // The kubelet takes its time; the bubble's clock does not.
			return response(call), nil
		}}
		l := newLister(s)
		var all sync.WaitGroup
		ask := func(want string) {
			all.Go(func() {
				pods, err := l.list(t.Context())
				if err != nil || len(pods) != 1 || pods[0].GetName() != want {
					t.Errorf("%v, %v, want the answer to call %s", pods, err, want)
				}
			})
		}
		ask("1")
		synctest.Wait() // The first call is under way: it may not know what comes now.
		for range 100 {
			ask("2")
		}
		all.Wait()
		if s.calls != 2 {
			t.Errorf("%d calls", s.calls)
		}
	})
}

func TestListIsTriedAgainInTime(t *testing.T) {
	busy := status.Error(codes.ResourceExhausted, "rejected by rate limit")
	for _, tt := range []struct {
		name     string
		rejected int
		err      error
		wait     time.Duration
		want     error
	}{
		{"rejected a few times", 5, busy, time.Minute, nil},
		{"the kubelet went and came", 5, status.Error(codes.Unavailable, "EOF"), time.Minute, nil},
		{"always rejected", 1 << 30, busy, time.Minute, busy},
		{"always rejected, and the caller goes", 1 << 30, busy, time.Second, context.DeadlineExceeded},
		{"an error of another kind", 1, status.Error(codes.Unimplemented, "x"), time.Minute, status.Error(codes.Unimplemented, "x")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{answer: func(call int) (*podresources.ListPodResourcesResponse, error) {
					if call <= tt.rejected {
						return nil, tt.err
					}
					return response(call), nil
				}}
				l := newLister(s)
				ctx, cancel := context.WithTimeout(t.Context(), tt.wait)
				defer cancel()
				start := time.Now()
				pods, err := l.list(ctx)
				if (tt.want == nil) != (err == nil) || tt.want != nil && !errors.Is(err, tt.want) && status.Code(err) != status.Code(tt.want) {
					t.Errorf("error %v, want %v", err, tt.want)
				}
				if err == nil && len(pods) != 1 {
					t.Errorf("pods %v", pods)
				}
				if took := time.Since(start); took > min(listTimeout, tt.wait)+time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":{"-1":["1"],"0":["1","2"]},"AllocResp":"KhAKDmhlZGRsZS5kZXYvZz14"}],"RegisteredDevices":{"r":["1"]}},"Checksum":1}`))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"0":null},"AllocResp":"/w=="}]}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := parseCheckpoint(b)
		if err != nil {
			return
		}
		for _, h := range join(nil, entries) {
			if h.UID == "" || h.Name == "" || !slices.IsSorted(h.IDs) {
				t.Errorf("allocation %+v", h)
			}
		}
	})
}
