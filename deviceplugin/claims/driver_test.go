package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"

	api "github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/labels"
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

func newRig(tb testing.TB, before ...func(*fake.Clientset)) *rig {
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
			CDIDir: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"), ProcRoot: dir, Hook: "/heddle-cdi-hook", Log: log,
		}, inv),
		Names: func(uuids []string) []string {
			names := slices.Clone(uuids)
			for i := range names {
				names[i] = "driver.heddle.dev/gpu=" + names[i]
			}
			return names
		},
	})
	if err := os.MkdirAll(filepath.Join(dir, "plugins_registry"), 0o750); err != nil {
		tb.Fatal(err)
	}
	r.Update(inv)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	r.dra = dial(tb, filepath.Join(dir, "plugin", "dra.sock"))
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

func TestPrepare(t *testing.T) {
	r := newRig(t)
	pair := r.allocated("pair", r.device(api.Pair, 0))
	devices, reason := r.prepare(pair)
	if reason != "" || len(devices) != 1 {
		t.Fatalf("%v, %s", devices, reason)
	}
	ids := devices[0].GetCdiDeviceIds()
	if want := "driver.heddle.dev/gpu=" + r.inv.Machine.GPUs[0].UUID; len(ids) != 3 || ids[0] != want || !strings.HasPrefix(ids[2], "heddle.dev/claim=") {
		t.Errorf("CDI devices %v", ids)
	}
	stranger := r.device(api.GPU, 1)
	stranger.Driver = "gpu.nvidia.com"
	if devices, reason = r.prepare(r.allocated("other", stranger, r.device(api.GPU, 2))); reason != "" || len(devices) != 1 {
		t.Errorf("a claim that is another driver's in part: %v, %s", devices, reason)
	}
	monitor := r.device(api.Monitor, 0)
	monitor.AdminAccess = new(true)
	if devices, reason = r.prepare(r.allocated("admin", monitor)); reason != "" || len(devices) != 1 {
		t.Errorf("a GPU that is held, with adminAccess: %v, %s", devices, reason)
	}
	gone, elsewhere := r.device(api.GPU, 3), r.device(api.GPU, 3)
	gone.Device, elsewhere.Pool = "gpu-gone", "gpu-2"
	for want, result := range map[string]resourceapi.DeviceRequestAllocationResult{
		"is held by claim ml/pair":                        r.device(api.GPU, 0),
		"request r: device gpu-gone is not on node gpu-1": gone,
		"request r: pool gpu-2 is not of node gpu-1":      elsewhere,
		"is held by claim ml/other":                       r.device(api.Pair, 2),
		"is for requests with adminAccess":                r.device(api.Monitor, 0),
	} {
		if _, reason := r.prepare(r.allocated(fmt.Sprintf("bad-%d", len(want)), result)); !strings.Contains(reason, want) {
			t.Errorf("%q, want %q in it", reason, want)
		}
	}
	if _, err := r.dra.NodeUnprepareResources(t.Context(), &dra.NodeUnprepareResourcesRequest{
		Claims: []*dra.Claim{{Namespace: "ml", Name: "pair", Uid: string(pair.UID)}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, reason := r.prepare(r.allocated("next", r.device(api.GPU, 0))); reason != "" {
		t.Error(reason)
	}
}

func TestParametersAndShares(t *testing.T) {
	r := newRig(t)
	share := r.device(api.GPU, 0)
	share.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
		api.CapacityVCore: resource.MustParse("30"), api.CapacityVMemory: resource.MustParse("24Gi"),
	}
	c := r.allocated("share", share)
	parameters := func(text string) {
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: api.Driver, Parameters: runtime.RawExtension{Raw: []byte(text)},
			}},
		}}
		if _, err := r.client.ResourceV1().ResourceClaims("ml").Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		`{"apiVersion":"claims.heddle.dev/v1alpha1","kind":"DeviceParameters","policcy":"x"}`:          `unknown field "policcy"`,
		`{"apiVersion":"claims.heddle.dev/v9","kind":"DeviceParameters"}`:                              `unsupported apiVersion "claims.heddle.dev/v9"`,
		`{"apiVersion":"claims.heddle.dev/v1alpha1","kind":"DeviceParameters","policy":"most"}`:        `policy: unsupported value "most"`,
		`{"apiVersion":"claims.heddle.dev/v1alpha1","kind":"DeviceParameters","policy":"burst-share"}`: "",
	} {
		parameters(text)
		if _, reason := r.prepare(c); !strings.Contains(reason, want) || want == "" && reason != "" {
			t.Errorf("%s: %q, want %q in it", text, reason, want)
		}
	}
	limits := r.State.View().Limits()
	if len(limits) != 1 || limits[0].Policy != "burst-share" || limits[0].GPUs[0].Share.VCore != 30 || limits[0].GPUs[0].Share.MemoryMiB != 24<<10 {
		t.Errorf("limits %+v", limits)
	}
}

// A claim's IMEX channel is that of the clique that the node is in now.
func TestPrepareChannel(t *testing.T) {
	r := newRig(t)
	in := *r.inv
	in.Machine = machines.Load(t, "gb200-tray")
	r.Update(&in)
	clique, _ := labels.Clique(in.Machine)
	channel := func(pool, device string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: api.Driver, Pool: pool, Device: device}
	}
	c := r.allocated("job", channel(api.ChannelPool(clique), api.ChannelDevice(17)))
	if _, reason := r.prepare(c); !strings.Contains(reason, "request r: IMEX channel 17") {
		t.Errorf("without /proc/devices: %q", reason)
	}
	devices := func(text string) {
		if err := os.WriteFile(filepath.Join(r.KubeletDir, "devices"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	devices("Character devices:\n  1 mem\n\nBlock devices:\n234 nvidia-caps-imex-channels\n")
	if _, reason := r.prepare(c); !strings.Contains(reason, "the driver has no channels on this node") {
		t.Errorf("without a driver: %q", reason)
	}
	devices("Character devices:\n  1 mem\n234 nvidia-caps-imex-channels\n\nBlock devices:\n  7 loop\n")
	given, reason := r.prepare(c)
	if reason != "" || len(given) != 1 || len(given[0].GetCdiDeviceIds()) != 1 {
		t.Fatalf("%v, %q", given, reason)
	}
	_, name, _ := strings.Cut(given[0].GetCdiDeviceIds()[0], "=")
	spec, err := os.ReadFile(filepath.Join(r.KubeletDir, "cdi", "heddle-claim-"+name+".json"))
	const want = `{"path":"/dev/nvidia-caps-imex-channels/channel17","type":"c","major":234,"minor":17,"permissions":"rw"}`
	if err != nil || !strings.Contains(string(spec), want) {
		t.Errorf("spec %s, %v, want %s in it", spec, err, want)
	}
	for pool, want := range map[string]string{
		"imex/other.0": "pool imex/other.0 is not of node gpu-1: its GPUs are in clique", "imex": "pool imex is not of node gpu-1",
	} {
		if _, reason := r.prepare(r.allocated("not-"+strings.ReplaceAll(pool, "/", "-"), channel(pool, "channel-1"))); !strings.Contains(reason, want) {
			t.Errorf("%q, want %q in it", reason, want)
		}
	}
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

// A GPU that fails and recovers 1,000 times is written at most once a second, and its last state is right.
func TestFlaps(t *testing.T) {
	r := newRig(t)
	r.wait(0)
	before, begin := r.writes(), time.Now()
	sick := r.sick()
	for range 1000 {
		r.Update(sick)
		r.Update(r.inv)
	}
	r.Update(sick)
	r.wait(2)
	if n, most := r.writes()-before, 2+int(time.Since(begin).Seconds()); n > most {
		t.Errorf("%d writes, want at most %d", n, most)
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
