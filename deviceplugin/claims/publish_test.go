package claims

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	pluginregistration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	api "github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// A fault shows in the slices, and is gone after the recovery: one write each.
func TestPublish(t *testing.T) {
	r := newRig(t)
	r.wait(0)
	first := len(pool.Of(r.inv).Slices())
	if n := r.writes(); n != first {
		t.Errorf("%d writes of %d slices", n, first)
	}
	r.Update(r.sick())
	r.wait(2) // The GPU and its pair.
	r.Update(r.inv)
	r.wait(0)
	if n := r.writes(); n != first+2 {
		t.Errorf("%d writes for a fault and its end", n-first)
	}
}

// The API server is away at the start: the driver serves the kubelet, and publishes later.
func TestStartWithoutAPIServer(t *testing.T) {
	away := atomic.Bool{}
	away.Store(true)
	r := newRig(t, func(client *fake.Clientset) {
		client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errors.New("connection refused")
		})
		client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			return away.Load(), nil, errors.New("connection refused")
		})
	})
	_, err := r.dra.NodePrepareResources(t.Context(), &dra.NodePrepareResourcesRequest{
		Claims: []*dra.Claim{{Namespace: "ml", Name: "new", Uid: "uid-new"}},
	}, grpc.WaitForReady(true))
	if err == nil || !strings.Contains(err.Error(), "claim ml/new: connection refused") {
		t.Errorf("prepare: %v", err)
	}
	if _, err := r.dra.NodeUnprepareResources(t.Context(), &dra.NodeUnprepareResourcesRequest{
		Claims: []*dra.Claim{{Namespace: "ml", Name: "old", Uid: "uid-old"}},
	}); err != nil {
		t.Errorf("unprepare: %v", err)
	}
	away.Store(false)
	r.wait(0)
}

// An API server without the feature gates drops fields: the driver publishes what is left, and says so.
func TestAPIServerWithoutGates(t *testing.T) {
	drop := func(a clienttesting.Action) (bool, runtime.Object, error) {
		if written, ok := a.(interface{ GetObject() runtime.Object }); ok {
			if s, ok := written.GetObject().(*resourceapi.ResourceSlice); ok {
				s.Spec.SharedCounters = nil
				for i := range s.Spec.Devices {
					d := &s.Spec.Devices[i]
					d.ConsumesCounters, d.AllowMultipleAllocations, d.Taints = nil, nil, nil
				}
			}
		}
		return false, nil, nil
	}
	r := newRig(t, func(client *fake.Clientset) {
		client.PrependReactor("create", "resourceslices", drop)
		client.PrependReactor("update", "resourceslices", drop)
	})
	want := 0
	for _, s := range pool.Of(r.inv).Plain() {
		want += len(s.Devices)
	}
	deadline := time.Now().Add(patience)
	for {
		_, devices, _ := r.published()
		problems := r.Problems()
		if devices == want && len(problems) == 1 && problems[0].Name == report.ClaimsPlain {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d devices, want %d; problems %v", devices, want, problems)
		}
		<-time.After(10 * time.Millisecond)
	}
	for _, a := range r.client.Actions() { // Not even for a moment.
		created, ok := a.(clienttesting.CreateActionImpl)
		if !ok || a.GetResource().Resource != "resourceslices" {
			continue
		}
		for _, device := range created.Object.(*resourceapi.ResourceSlice).Spec.Devices {
			if strings.HasPrefix(device.Name, string(api.Pair)+"-") {
				t.Errorf("device %s is published", device.Name)
			}
		}
	}
}

// calls counts what would be written.
type calls struct {
	n    int
	last resourceslice.DriverResources
}

func (c *calls) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	c.n, c.last = c.n+1, resources
	return nil
}

func (*calls) RegistrationStatus() *pluginregistration.RegistrationStatus { return nil }

// A GPU that fails and recovers 1,000 times in 100 s is written once a second, and its last state is right.
func TestFlaps(t *testing.T) {
	r := unstarted(t)
	sick := pool.Of(r.sick()).Slices()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d, seen := New(r.Options), &calls{}
		d.Update(r.inv)
		go d.publish(ctx, seen)
		for range 1000 {
			for _, inv := range []*inventory.Inventory{r.sick(), r.inv} {
				d.Update(inv)
				<-time.After(50 * time.Millisecond)
			}
		}
		d.Update(r.sick())
		<-time.After(2 * time.Second)
		synctest.Wait()
		if seen.n < 90 || seen.n > 103 {
			t.Errorf("%d writes", seen.n)
		}
		if diff := cmp.Diff(sick, seen.last.Pools[node].Slices); diff != "" {
			t.Errorf("the last write (-want +got):\n%s", diff)
		}
		cancel()
		synctest.Wait()
	})
}

// A start meets the slices of an earlier one before it knows the node's devices: nothing is known of their holders yet.
func TestObserveBeforeTheFirstRound(t *testing.T) {
	r := newRig(t)
	r.wait(0)
	again := New(r.Options)
	if _, _, err := again.Observe(t.Context()); err == nil {
		t.Error("devices are known before the first round")
	}
	again.Update(r.inv)
	if offered, _, err := again.Observe(t.Context()); err != nil || len(offered) == 0 {
		t.Errorf("%d devices, %v", len(offered), err)
	}
}
