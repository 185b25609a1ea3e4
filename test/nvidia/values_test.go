//go:build cgo && linux

package nvidia_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// node is a driver with a reader of its GPUs, on a bus that has them.
type node struct {
	driver  *nvidia.Driver
	control nvidia.Control
	sources gpu.Sources
	reader  *gpu.Reader
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{}
	n.driver, n.control = dgx(t, before)
	n.restart()
	return n
}

// restart is a daemon that starts again and has seen nothing.
func (n *node) restart() {
	n.sources = gpu.Sources{{Vendor: nvml.Vendor(), Library: nvml.New(gpu.Options{DriverRoot: n.driver.Root})}}
	n.reader = gpu.NewReader(n.sources[0], 0)
}

// scan reads the GPUs after a change of what the kernel's side answers.
func (n *node) scan(t *testing.T, failures ...nvidia.Failure) *machine.Machine {
	t.Helper()
	n.control.Failures = failures
	if err := n.driver.Set(n.control); err != nil {
		t.Fatal(err)
	}
	m := &machine.Machine{Version: machine.Version, Node: "n"}
	for _, g := range n.control.GPUs {
		m.PCI = append(m.PCI, machine.PCIFunction{
			Address: g.PCI, Vendor: "0x10de", Device: "0x2330", Class: "0x030200", Driver: "nvidia",
		})
	}
	n.reader.Read(t.Context(), m)
	if err := n.reader.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.Validate(); err != nil {
		t.Error(err)
	}
	return m
}

func skipped(m *machine.Machine, address, reason string) bool {
	return slices.ContainsFunc(m.Skipped, func(s machine.Skipped) bool {
		return s.Name == address && strings.Contains(s.Reason, reason)
	})
}

// One function that fails on one GPU takes nothing away from it.
func TestAnErrorIsNoAnswer(t *testing.T) {
	n := newNode(t)
	n.control.GPUs[3].MIG = 1 + 3
	was := n.scan(t)
	if mig := was.GPUs[3].MIG; !mig.Enabled || len(mig.Devices) != 3 || mig.Devices[2].Profile != "1g.10gb" || len(was.Skipped) > 0 {
		t.Fatalf("MIG %+v, skipped %v", mig, was.Skipped)
	}
	m := n.scan(t, nvidia.Failure{Function: "SystemGetCudaDriverVersion_v2", GPU: nvidia.Any, Arg: nvidia.Any, Return: nvidia.Unknown})
	if was.Driver.CUDA == "" || m.Driver != was.Driver {
		t.Errorf("driver %+v, was %+v", m.Driver, was.Driver)
	}
	for _, f := range []nvidia.Failure{
		{Function: "DeviceGetMigMode", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
		{Function: "DeviceGetMaxMigDeviceCount", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
		{Function: "DeviceGetMigDeviceHandleByIndex", GPU: 3, Arg: 1, Return: nvidia.Unknown},
		{Function: "DeviceGetUUID", GPU: 3, Arg: 1, Return: nvidia.Unknown},
		{Function: "DeviceGetAttributes_v2", GPU: 3, Arg: 0, Return: nvidia.Unknown},
		{Function: "DeviceGetName", GPU: 3, Arg: 2, Return: nvidia.Unknown},
		{Function: "DeviceGetNvLinkState", GPU: 3, Arg: 4, Return: nvidia.Unknown},
		{Function: "DeviceGetNvLinkRemoteDeviceType", GPU: 3, Arg: 4, Return: nvidia.Unknown},
		{Function: "DeviceGetFieldValues", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
		{Function: "DeviceGetGpuFabricInfoV", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
		{Function: "DeviceGetMinorNumber", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
		{Function: "DeviceGetCudaComputeCapability", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
		{Function: "DeviceGetEccMode", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
		{Function: "DeviceGetVirtualizationMode", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
	} {
		m := n.scan(t, f)
		if diff := cmp.Diff(was.GPUs, m.GPUs); diff != "" {
			t.Errorf("%s fails (-before +now):\n%s", f.Function, diff)
		}
		if !skipped(m, n.control.GPUs[3].PCI, "Unknown Error") {
			t.Errorf("%s fails, and is not reported: %v", f.Function, m.Skipped)
		}
	}
	// A link that this one GPU does not have is none, and those behind it are there.
	m = n.scan(t, nvidia.Failure{Function: "DeviceGetNvLinkState", GPU: 3, Arg: 4, Return: nvidia.NotSupported})
	if links := m.GPUs[3].NVLinks; len(links) != 1 || links[0].Links != was.GPUs[3].NVLinks[0].Links-1 || len(m.Skipped) > 0 {
		t.Errorf("a GPU without its fifth link: %+v, skipped %v", links, m.Skipped)
	}
	// A part that answers that the GPU is lost answers for the GPU.
	m = n.scan(t, nvidia.Failure{Function: "DeviceGetMigMode", GPU: 3, Arg: nvidia.Any, Return: nvidia.GPUIsLost})
	if g := m.GPUs[3]; g.Health.State != machine.Lost || len(g.MIG.Devices) != 3 {
		t.Errorf("lost: %+v, MIG %+v", g.Health, g.MIG)
	}
	// Instances that are destroyed are gone, and so are those of a mode that ended.
	n.control.GPUs[3].MIG = 1 + 1
	if m = n.scan(t); len(m.GPUs[3].MIG.Devices) != 1 {
		t.Errorf("two of three instances are gone: %+v", m.GPUs[3].MIG)
	}
	n.control.GPUs[3].MIG = nvidia.NoMIG
	if m = n.scan(t); m.GPUs[3].MIG.Capable || m.GPUs[3].Health.State != machine.Healthy {
		t.Errorf("not supported is no: %+v", m.GPUs[3])
	}
	m = n.scan(t, nvidia.Failure{Function: "DeviceGetMigMode", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown})
	if m.GPUs[3].MIG.Capable || m.GPUs[3].Health.State != machine.Healthy {
		t.Errorf("the last known value is that it has no MIG: %+v", m.GPUs[3])
	}
}

// What was never read is unknown: of a MIG mode the GPU is not handed out, of
// links those count that answered.
func TestAnErrorAtTheStart(t *testing.T) {
	n := newNode(t)
	n.control.GPUs[3].MIG = 1 + 3
	failures := []nvidia.Failure{
		{Function: "DeviceGetMigMode", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown},
		{Function: "DeviceGetNvLinkState", GPU: 5, Arg: 4, Return: nvidia.Unknown},
	}
	for range 2 {
		m := n.scan(t, failures...)
		if h := m.GPUs[3].Health; h.State != machine.Unhealthy || !strings.HasPrefix(h.Reason, "its MIG mode is unknown: MIG mode:") {
			t.Errorf("unknown MIG mode: %+v", h)
		}
		if g := m.GPUs[5]; g.Health.State != machine.Healthy || g.NVLinks[0].Links != 17 {
			t.Errorf("one link of 18 does not answer: %+v", g)
		}
	}
	m := n.scan(t)
	if g := m.GPUs[3]; g.Health.State != machine.Healthy || len(g.MIG.Devices) != 3 || m.GPUs[5].NVLinks[0].Links != 18 || len(m.Skipped) > 0 {
		t.Errorf("all answer: %+v, %+v, %v", g, m.GPUs[5], m.Skipped)
	}
}

func TestFabricRegistration(t *testing.T) {
	n := newNode(t)
	for i := range n.control.GPUs {
		n.control.GPUs[i].Fabric, n.control.GPUs[i].Clique = nvidia.Completed, 7
	}
	const place = "00000000-0000-0000-0000-000000000001.7"
	n.control.GPUs[1].Fabric = nvidia.InProgress
	n.control.GPUs[2].Status = nvidia.Unknown
	n.control.GPUs[4].HealthMask = 1 // NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE
	old := nvidia.Failure{Function: "DeviceGetGpuFabricInfoV", GPU: nvidia.Any, Arg: 3, Return: nvidia.OldStructure}
	older := nvidia.Failure{Function: "DeviceGetGpuFabricInfoV", GPU: nvidia.Any, Arg: nvidia.Any, Return: nvidia.OldStructure}
	for _, failures := range [][]nvidia.Failure{nil, {old}, {older}} {
		m := n.scan(t, failures...)
		if h := m.GPUs[1].Health; h.State != machine.Unhealthy || !strings.Contains(h.Reason, "802") {
			t.Errorf("in progress: %+v", h)
		}
		failed := m.GPUs[2]
		if failed.Health.State != machine.Healthy || failed.Fabric.State != machine.FabricFailed || len(failed.NVLinks) > 0 {
			t.Errorf("failed: %+v, fabric %+v, links %v", failed.Health, failed.Fabric, failed.NVLinks)
		}
		degraded := m.GPUs[4]
		if len(failures) == 0 || failures[0] == old {
			if degraded.Health.State != machine.Healthy || degraded.Fabric.Reason != "its bandwidth is degraded" {
				t.Errorf("degraded: %+v, fabric %+v", degraded.Health, degraded.Fabric)
			}
		}
		if got, conflict := labels.Clique(m); got != place || conflict {
			t.Errorf("clique %q, conflict %t", got, conflict)
		}
	}
	// The registration cannot be asked: what is in progress stays so.
	m := n.scan(t, nvidia.Failure{Function: "DeviceGetGpuFabricInfoV", GPU: 1, Arg: nvidia.Any, Return: nvidia.Unknown})
	if m.GPUs[1].Health.State != machine.Unhealthy {
		t.Errorf("in progress when last asked: %+v", m.GPUs[1].Health)
	}
	n.control.GPUs[1].Fabric, n.control.GPUs[2].Status = nvidia.Completed, 0
	m = n.scan(t)
	if m.GPUs[1].Health.State != machine.Healthy || len(m.GPUs[2].NVLinks) != 1 || m.GPUs[2].Fabric.State != machine.FabricCompleted {
		t.Errorf("registered: %+v, %+v", m.GPUs[1], m.GPUs[2])
	}
}

// A GPU that a daemon never saw alive has the identity that answers.
func TestLostAtTheStart(t *testing.T) {
	n := newNode(t)
	usual := n.scan(t).GPUs[6]
	for _, function := range []string{"DeviceGetMemoryInfo", "DeviceGetName", "DeviceGetMigMode"} {
		n.restart()
		m := n.scan(t, nvidia.Failure{Function: function, GPU: 6, Arg: nvidia.Any, Return: nvidia.GPUIsLost})
		if len(m.GPUs) != 8 || len(m.Skipped) > 0 {
			t.Fatalf("%s: %d GPUs, skipped %v", function, len(m.GPUs), m.Skipped)
		}
		g := m.GPUs[6]
		if g.UUID != usual.UUID || g.PCI != usual.PCI || g.Product != usual.Product || g.Health.State != machine.Lost {
			t.Errorf("%s: %+v", function, g)
		}
	}
	// It has reported its UUID alone, and its place on the bus is the only one without a GPU.
	n.restart()
	m := n.scan(t, nvidia.Failure{Function: "DeviceGetPciInfo_v3", GPU: 6, Arg: nvidia.Any, Return: nvidia.GPUIsLost})
	if g := m.GPUs[6]; g.UUID != usual.UUID || g.PCI != usual.PCI || g.Product != usual.Product || g.Health.State != machine.Lost {
		t.Errorf("without a PCI address: %+v", g)
	}
	for _, function := range []string{"DeviceGetUUID", "DeviceGetHandleByIndex_v2"} {
		n.restart()
		m := n.scan(t, nvidia.Failure{Function: function, GPU: 6, Arg: nvidia.Any, Return: nvidia.GPUIsLost})
		c := config.Default()
		r := labels.Compute(m, &c, gpu.Vendors{nvml.Vendor()})
		if len(m.GPUs) != 7 || m.Driver.Unidentified != 1 || r.Labels["nvidia.com/gpu.count"] != "8" {
			t.Errorf("%s: %d GPUs, driver %+v, label %q", function, len(m.GPUs), m.Driver, r.Labels["nvidia.com/gpu.count"])
		}
	}
}
