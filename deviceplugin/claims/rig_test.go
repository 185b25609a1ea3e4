package claims

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"

	api "github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
)

const (
	node     = "gpu-1"
	patience = time.Minute
)

// rig is a driver with its sockets, and an API server in memory.
type rig struct {
	*Driver
	t      testing.TB
	client *fake.Clientset
	dra    dra.DRAPluginClient
	inv    *inventory.Inventory
}

// unstarted returns a rig without its sockets.
func unstarted(tb testing.TB, before ...func(*fake.Clientset)) *rig {
	tb.Helper()
	m, c := machines.Load(tb, "dgx-h100"), config.Default()
	c.Mode = config.ModeClaims
	inv := inventorytest.Configured(m, &c)
	dir := tb.TempDir()
	log := slog.New(slog.DiscardHandler)
	r := &rig{t: tb, client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "uid-node"}}), inv: inv}
	// The API server in memory completes no names, and counts no versions, by which the library knows its own writes.
	var version atomic.Int64
	r.client.PrependReactor("*", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if written, ok := a.(interface{ GetObject() runtime.Object }); ok {
			if s, ok := written.GetObject().(*resourceapi.ResourceSlice); ok {
				s.Name = cmp.Or(s.Name, s.GenerateName+"x")
				s.ResourceVersion = strconv.FormatInt(version.Add(1), 10)
			}
		}
		// It stores what a dry run writes.
		if isDry(a) {
			return true, a.(clienttesting.CreateActionImpl).Object, nil
		}
		return false, nil, nil
	})
	for _, f := range before {
		f(r.client)
	}
	r.Driver = New(Options{
		NodeName: node, Client: r.client, Dir: filepath.Join(dir, "plugin"), KubeletDir: dir, Log: log,
		State: devicestate.New(devicestate.Options{
			CDIDir: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"), Processes: cgroup.Proc{Root: dir}, Hook: "/heddle-cdi-hook", Log: log,
		}, inv),
		Names: func(uuids []string) []string {
			names := slices.Clone(uuids)
			for i := range names {
				names[i] = "driver.heddle.dev/gpu=" + names[i]
			}
			return names
		},
	})
	return r
}

func newRig(tb testing.TB, before ...func(*fake.Clientset)) *rig {
	tb.Helper()
	r := unstarted(tb, before...)
	if err := os.MkdirAll(filepath.Join(r.KubeletDir, "plugins_registry"), 0o750); err != nil {
		tb.Fatal(err)
	}
	r.Update(r.inv)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	r.dra = dial(tb, filepath.Join(r.Dir, "dra.sock"))
	return r
}

// dial connects as the kubelet does.
func dial(tb testing.TB, socket string) dra.DRAPluginClient {
	tb.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return dra.NewDRAPluginClient(conn)
}

// allocated creates a claim with results.
func (r *rig) allocated(name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	r.t.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	created, err := r.client.ResourceV1().ResourceClaims("ml").Create(r.t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return created
}

// device is the result for the device of a type of the GPU with an index.
func (r *rig) device(of api.Type, gpu int) resourceapi.DeviceRequestAllocationResult {
	for d := range pool.Of(r.inv).Devices() {
		if d.Type == of && d.GPU == r.inv.Machine.GPUs[gpu].UUID {
			return resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: api.Driver, Pool: node, Device: d.Name}
		}
	}
	r.t.Fatalf("GPU %d has no device of type %s", gpu, of)
	return resourceapi.DeviceRequestAllocationResult{}
}

// prepare calls as the kubelet does.
func (r *rig) prepare(c *resourceapi.ResourceClaim) (devices []*dra.Device, reason string) {
	r.t.Helper()
	answer, err := r.dra.NodePrepareResources(r.t.Context(), &dra.NodePrepareResourcesRequest{
		Claims: []*dra.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}},
	}, grpc.WaitForReady(true))
	if err != nil {
		r.t.Fatal(err)
	}
	own := answer.GetClaims()[string(c.UID)]
	return own.GetDevices(), own.GetError()
}

// published counts what is on the API server.
func (r *rig) published() (slices, devices, tainted int) {
	r.t.Helper()
	list, err := r.client.ResourceV1().ResourceSlices().List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range list.Items {
		for j := range list.Items[i].Spec.Devices {
			devices++
			tainted += min(1, len(list.Items[i].Spec.Devices[j].Taints))
		}
	}
	return len(list.Items), devices, tainted
}

// wait waits until all is published, with this many tainted devices.
func (r *rig) wait(tainted int) {
	r.t.Helper()
	all := pool.Of(r.inv)
	deadline := time.Now().Add(patience)
	for {
		slices, devices, got := r.published()
		if slices == len(all.Slices()) && devices == len(all.Devices()) && got == tainted {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%d slices, %d devices, %d with taints, want %d", slices, devices, got, tainted)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func isDry(a clienttesting.Action) bool {
	created, ok := a.(clienttesting.CreateActionImpl)
	return ok && len(created.CreateOptions.DryRun) > 0
}

// writes counts the requests that change slices.
func (r *rig) writes() (n int) {
	for _, a := range r.client.Actions() {
		changes := slices.Contains([]string{"create", "update", "patch", "delete"}, a.GetVerb()) && !isDry(a)
		if changes && a.GetResource().Resource == "resourceslices" {
			n++
		}
	}
	return n
}

// sick is the node with one GPU unhealthy.
func (r *rig) sick() *inventory.Inventory {
	sick := *r.inv
	sick.GPUs = maps.Clone(r.inv.GPUs)
	uuid := r.inv.Machine.GPUs[5].UUID
	g := sick.GPUs[uuid]
	g.Unhealthy = "XID 79"
	sick.GPUs[uuid] = g
	return &sick
}
