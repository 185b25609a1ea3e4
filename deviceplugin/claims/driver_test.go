package claims

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"

	api "github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/test/machines"
)

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

// A claim gets an IMEX channel only of the clique that the node is in now.
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
