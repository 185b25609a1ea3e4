package convert_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/convert"
	"github.com/heddle-dev/heddle/sharing/quota"
)

const (
	nvidiaFile = `version: v1
flags: {migStrategy: mixed, failOnInitError: true}
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - {name: nvidia.com/gpu, replicas: 4}
    - {name: nvidia.com/mig-1g.10gb, replicas: 2}
`
	hamiFile = `apiVersion: v1
kind: ConfigMap
data:
  device-config.yaml: |
    nvidia:
      resourceCountName: nvidia.com/gpu
      resourceMemoryName: nvidia.com/gpumem
      resourceMemoryPercentageName: nvidia.com/gpumem-percentage
      defaultMemory: 0
      defaultCores: 0
      resourceCoreName: nvidia.com/gpucores
      deviceSplitCount: 8
      deviceMemoryScaling: 1.5
    cambricon:
      resourceCountName: cambricon.com/vmlu
`
	mellanoxFile = `{"periodicUpdateInterval": 300, "configList": [
  {"resourceName": "hca_a", "rdmaHcaMax": 63,
   "selectors": {"vendors": ["15b3"], "deviceIDs": ["1021"], "linkTypes": ["infiniband"]}},
  {"resourceName": "hca_b", "resourcePrefix": "example.com", "rdmaHcaMax": 9000, "devices": ["ib4"]}]}`
)

// node is the configuration that a node has with what was printed.
func node(t *testing.T, r *convert.Result) config.NodeConfig {
	t.Helper()
	c, err := config.Parse(map[string][]byte{
		config.KeyVersion: []byte(config.Version), r.Key: []byte(r.String()),
	}, &rule.CEL{})
	if err != nil {
		t.Fatalf("%v in\n%s", err, r)
	}
	return c.Cluster
}

func converted(t *testing.T, from, text string) *convert.Result {
	t.Helper()
	r, err := convert.Convert(from, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hasNotes checks that each place has a note, and that nothing else has.
func hasNotes(t *testing.T, r *convert.Result, places ...string) {
	t.Helper()
	var got []string
	for _, note := range r.Notes {
		place, _, _ := strings.Cut(note, ":")
		got = append(got, place)
	}
	if !slices.Equal(got, places) {
		t.Errorf("notes about %q, not %q", got, places)
	}
}

func TestNVIDIAReplicasAreSlots(t *testing.T) {
	r := converted(t, "nvidia", nvidiaFile)
	c := node(t, r)
	if c.Mode != config.ModeSGPU || c.SGPU.SlotsPerGPU != 4 || c.MIGStrategy != config.MIGMixed ||
		c.Resources.SGPU != "nvidia.com/gpu.shared" || c.Resources.GPU != "nvidia.com/gpu" {
		t.Errorf("made\n%s", r)
	}
	hasNotes(t, r, "flags.failOnInitError", "sharing.timeSlicing.resources[1].name", "sharing.timeSlicing.resources[1].replicas")
}

// A pod with a GPU as NVIDIA's plugin has it, and nothing else, asks for its part.
func TestUnmodifiedPodsHaveTheirPart(t *testing.T) {
	limits := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	for kind, want := range map[string]quota.Request{
		"timeSlicing": {GPUs: 1, MemoryPercent: 33, Policy: quota.FixedShare},
		"mps":         {GPUs: 1, VCore: 33, MemoryPercent: 33, Policy: quota.FixedShare},
	} {
		c := node(t, converted(t, "nvidia", "version: v1\nsharing: {"+kind+": {resources: [{name: nvidia.com/gpu, replicas: 3}]}}"))
		got, err := quota.ParseRequest(limits, nil, &c)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", kind, err, diff)
		}
		if none := c.SGPU.Enforce.Memory == config.EnforceNone; none != (kind == "timeSlicing") {
			t.Errorf("%s: enforced by %+v", kind, c.SGPU.Enforce)
		}
	}
}

// In the GPU operator's ConfigMap the key has any name.
func TestNVIDIAConfigMap(t *testing.T) {
	const of = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: time-slicing-config}\ndata:\n"
	const any = "  any: |-\n    version: v1\n    sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
	r := converted(t, "nvidia", of+any)
	if c := node(t, r); c.SGPU.SlotsPerGPU != 4 {
		t.Errorf("made\n%s", r)
	}
	hasNotes(t, r)
	r = converted(t, "nvidia", of+any+"  default: 'flags: {migStrategy: single}'\n")
	c, err := config.Parse(map[string][]byte{config.KeyVersion: []byte(config.Version), r.Key: []byte(r.String())}, &rule.CEL{})
	if err != nil {
		t.Fatal(err)
	}
	labeled, other := c.Resolve("n", map[string]string{"nvidia.com/device-plugin.config": "any"}), c.Resolve("n", nil)
	if labeled.SGPU.SlotsPerGPU != 4 || other.MIGStrategy != config.MIGSingle || other.Mode != config.ModeNative {
		t.Errorf("two files: made\n%s", r)
	}
	r = converted(t, "hami", hamiFile+"  config.json: '{}'\n")
	if !slices.Contains(r.Notes, "data.config.json: not carried over") {
		t.Errorf("notes %q", r.Notes)
	}
}

func TestNVIDIAMPSIsTheEnforcer(t *testing.T) {
	r := converted(t, "nvidia", "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: [0, 1], rename: half}]}}")
	c := node(t, r)
	if e := c.SGPU.Enforce; e.Memory != "mps" || e.Compute != "mps" || len(c.SGPU.GPUs) != 0 || c.Resources.SGPU != "nvidia.com/gpu" {
		t.Errorf("made %+v", c.SGPU)
	}
	hasNotes(t, r, "sharing.mps.resources[0].rename", "sharing.mps.resources[0].devices")
}

func TestHAMiSplitCountIsSlots(t *testing.T) {
	r := converted(t, "hami", hamiFile)
	c := node(t, r)
	want := config.Resources{
		GPU: "nvidia.com/gpu.exclusive", SGPU: "nvidia.com/gpu", VCore: "nvidia.com/gpucores", VMemory: "nvidia.com/gpumem",
		VMemoryUnit: config.MiB, VMemoryPercentage: "nvidia.com/gpumem-percentage",
	}
	if diff := cmp.Diff(want, c.Resources); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	if c.Mode != config.ModeSGPU || c.SGPU.SlotsPerGPU != 8 || c.SGPU.Defaults.VCore != 0 || c.SGPU.MemoryOvercommit != 1.5 {
		t.Errorf("made\n%s", r)
	}
	hasNotes(t, r, "nvidia.deviceMemoryScaling", "nvidia.resourceCountName", "nvidia.resourceMemoryName", "cambricon")
}

func TestHAMiMemoryScalingIsOvercommit(t *testing.T) {
	const file = "nvidia: {deviceSplitCount: 4, deviceMemoryScaling: "
	for scaling, want := range map[string]float64{"1": 1, "1.0": 1, "2": 2, "1.8": 1.8, "0.5": 1, "80": 1} {
		r := converted(t, "hami", file+scaling+"}")
		if c := node(t, r); c.SGPU.MemoryOvercommit != want {
			t.Errorf("%s is %v", scaling, c.SGPU.MemoryOvercommit)
		}
		if noted := strings.Contains(strings.Join(r.Notes, "\n"), "deviceMemoryScaling"); noted == strings.HasPrefix(scaling, "1") && scaling != "1.8" {
			t.Errorf("%s: notes %q", scaling, r.Notes)
		}
	}
	if _, err := convert.Convert("hami", []byte(file+"lots}")); err == nil || !strings.Contains(err.Error(), "deviceMemoryScaling") {
		t.Errorf("error %v", err)
	}
}

// HAMi's memoryFactor is its unit.
func TestHAMiMemoryFactorIsTheUnit(t *testing.T) {
	const gib = "nvidia: {resourceMemoryName: nvidia.com/vmemory, memoryFactor: "
	if c := node(t, converted(t, "hami", gib+"1024}")); c.Resources.VMemoryUnit != config.GiB {
		t.Errorf("made %+v", c.Resources)
	}
	if r, err := convert.Convert("hami", []byte(gib+"512}")); err == nil || !strings.Contains(err.Error(), "nvidia.memoryFactor: a unit of 512 MiB") {
		t.Errorf("made %v, error %v", r, err)
	}
}

// HAMi's defaultMemory is MiB, whatever the unit of a pod's memory is.
func TestHAMiDefaultMemoryIsTheDefault(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int
		unit config.MemoryUnit
		note bool
	}{
		{"defaultMemory: 5000, resourceMemoryName: nvidia.com/gpumem", 5000, config.MiB, false},
		{"defaultMemory: 4096, resourceMemoryName: nvidia.com/gpumem, memoryFactor: 1024", 4, config.GiB, false},
		{"defaultMemory: 5000, resourceMemoryName: nvidia.com/gpumem, memoryFactor: 1024", 5, config.GiB, true},
		{"defaultMemory: 4096", 4, config.GiB, false},
		{"defaultMemory: 0", 0, config.GiB, false},
	} {
		r := converted(t, "hami", "nvidia: {"+tt.text+"}")
		if c := node(t, r); c.SGPU.Defaults.VMemory != tt.want || c.Resources.VMemoryUnit != tt.unit || c.SGPU.Defaults.VCore != 0 {
			t.Errorf("%s: made %+v with unit %s", tt.text, c.SGPU.Defaults, c.Resources.VMemoryUnit)
		}
		if noted := strings.Contains(strings.Join(r.Notes, "\n"), "nvidia.defaultMemory"); noted != tt.note {
			t.Errorf("%s: notes %q", tt.text, r.Notes)
		}
	}
	if r, err := convert.Convert("hami", []byte("nvidia: {defaultMemory: -1}")); err == nil || !strings.Contains(err.Error(), "nvidia.defaultMemory: -1") {
		t.Errorf("made %v, error %v", r, err)
	}
}

func TestMellanoxResourcesAreRDMAResources(t *testing.T) {
	r := converted(t, "mellanox", mellanoxFile)
	got := node(t, r).RDMA.Resources
	if len(got) != 2 || got[0].Name != "rdma/hca_a" || got[0].Sharers != 63 || got[0].Count != config.CountAll ||
		!slices.Equal(got[0].Selectors.LinkTypes, []string{"infiniband"}) || len(got[0].Selectors.Roles) != 0 {
		t.Fatalf("made\n%s", r)
	}
	if b := got[1]; b.Name != "example.com/hca_b" || b.Sharers != 4096 || len(b.Selectors.IfNames) != 1 {
		t.Errorf("made\n%s", r)
	}
	hasNotes(t, r, "configList[0].rdmaHcaMax", "configList[1].rdmaHcaMax", "configList[1].rdmaHcaMax",
		"periodicUpdateInterval")
}

func TestWhatIsNotThatPeersIsAnError(t *testing.T) {
	for from, text := range map[string]string{"nvidia": mellanoxFile, "hami": nvidiaFile, "mellanox": hamiFile} {
		if r, err := convert.Convert(from, []byte(text)); err == nil {
			t.Errorf("%s made of another's file:\n%s", from, r)
		}
	}
}

// FuzzConvert: whatever is read, what comes out is a configuration, with its
// notes above it.
func FuzzConvert(f *testing.F) {
	for from, text := range map[string]string{"nvidia": nvidiaFile, "hami": hamiFile, "mellanox": mellanoxFile} {
		f.Add(from, text)
	}
	f.Fuzz(func(t *testing.T, from, text string) {
		if r, err := convert.Convert(from, []byte(text)); err == nil {
			node(t, r)
		}
	})
}
