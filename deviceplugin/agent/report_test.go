package agent

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

const (
	slots   = "nvidia.com/sgpu"
	vcore   = "nvidia.com/vcore"
	vmemory = "nvidia.com/vmemory"
)

// chooser is a Limiter that has chosen, or could not.
type chooser struct {
	choice enforce.Choice
	err    error
}

func (c chooser) Edits(context.Context, *enforce.Limit) (*specs.ContainerEdits, enforce.Enforced, error) {
	return &specs.ContainerEdits{}, c.choice.Enforced, nil
}

func (chooser) Configure(*machine.Machine, *config.NodeConfig) error { return nil }

func (chooser) Keep([]enforce.Limit) error { return nil }

func (chooser) Daemons() []enforce.Daemon { return nil }

func (c chooser) Choice() (enforce.Choice, error) { return c.choice, c.err }

// anyNodes makes device nodes for all GPUs, all of them the same.
type anyNodes struct{}

func (anyNodes) Generate(m *machine.Machine) (*devgpu.Edits, error) {
	out := &devgpu.Edits{}
	for i := range m.GPUs {
		out.Devices = append(out.Devices, specs.Device{Name: m.GPUs[i].UUID, ContainerEdits: specs.ContainerEdits{
			DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia" + strconv.Itoa(i), HostPath: "/dev/null", Type: "c"}},
		}})
	}
	return out, nil
}

func (anyNodes) Fingerprint() string { return "" }

// The report has the consumers of a shared GPU, and the pods that get no share.
func TestReportOfShares(t *testing.T) {
	choice := enforce.Choice{
		Enforced:  enforce.Enforced{Memory: config.EnforceDMem, Compute: config.EnforceMPS},
		WhyMemory: "memory is limited by dmem", WhyCompute: "compute is limited by mps",
	}
	r := newRig(t, "dgx-h100", func(o *Options) { o.Limiter, o.Generator = chooser{choice: choice}, anyNodes{} })
	r.configure("mode: sgpu\nsgpu: {gpus: [7]}\n")
	r.run()
	r.list(slots, 16, 0)
	for name, ask := range map[string][2]string{"a": {"30", "4"}, "b": {"20", "8"}, "c": {"60", "4"}} {
		r.api.create(wish(name, map[string]string{slots: "1", vcore: ask[0], vmemory: ask[1]}, nil))
		r.admit(name, map[string]int{slots: 1})
	}
	r.start("a")
	r.start("b")
	if _, err := r.kubelet.StartContainer(t.Context(), "default", "c", "main"); err == nil ||
		!strings.Contains(err.Error(), "50 % of 100 left; needs 60") {
		t.Fatalf("a pod for which the GPU has no room: %v", err)
	}

	got := r.Report()
	gpu := got.GPUs[7]
	want := report.GPU{Index: 7, UUID: gpu.UUID, Mode: "sgpu", Wanted: "sgpu", Shared: &quota.GPU{
		UUID: gpu.UUID, Index: 7, NUMA: gpu.Shared.NUMA, Zone: gpu.Shared.Zone,
		Policy: "fixed-share", VCore: 50, UsedMiB: 12 << 10, MemoryMiB: r.source.get().GPUs[7].MemoryMiB, Consumers: 2, Slots: 16,
	}}
	if diff := cmp.Diff(want, gpu); diff != "" {
		t.Errorf("shared GPU (-want +got):\n%s", diff)
	}
	for i := range got.GPUs[:7] {
		if got.GPUs[i].Shared != nil {
			t.Errorf("GPU %d is not shared, and the report has shares of it", i)
		}
	}
	for _, b := range got.Bindings {
		if len(b.Shares) != 1 || b.Shares[0].UUID != gpu.UUID || b.By != "node" || b.Enforced != choice.Enforced {
			t.Errorf("binding %+v", b)
		}
	}
	if len(got.Rejected) != 1 {
		t.Fatalf("rejected: %+v", got.Rejected)
	}
	rejected := got.Rejected[0]
	if age := time.Since(rejected.Since); age < 0 || age > time.Minute {
		t.Errorf("rejected since %s", rejected.Since)
	}
	rejected.Since = time.Time{}
	wantRejected := report.Rejection{
		Namespace: "default", Pod: "c", UID: uidOf("c"), Container: "main", Kind: allocate.RejectedFull,
		Reason: "none of 1 GPUs can give 60 % of compute and 4 GiB. GPU 7: 50 % of 100 left; needs 60",
	}
	if diff := cmp.Diff(wantRejected, rejected); diff != "" {
		t.Errorf("rejected (-want +got):\n%s", diff)
	}
	wantChoice := &report.Enforcers{
		Memory: "dmem", WhyMemory: choice.WhyMemory, Compute: "mps", WhyCompute: choice.WhyCompute,
	}
	if diff := cmp.Diff(wantChoice, got.Enforcers); diff != "" {
		t.Errorf("enforcers (-want +got):\n%s", diff)
	}
}
