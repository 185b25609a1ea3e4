package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// requested is a node with IMEX channel 0, for pods that ask for it.
type requested struct{ devgpu.ReplayedEdits }

func (c requested) Generate(m *machine.Machine) (*devgpu.Edits, error) {
	edits, err := c.ReplayedEdits.Generate(m)
	if err == nil {
		edits.Channels = map[int]*specs.DeviceNode{0: {Path: "/dev/channel0", HostPath: "/dev/null"}}
	}
	return edits, err
}

func byRequest(o *Options) {
	if edits, ok := o.Generator.(devgpu.ReplayedEdits); ok {
		o.Generator = requested{edits}
	}
	o.Features = devgpu.Features{IMEX: "all", IMEXByPod: true}
}

// What the driver's spec has of channels is what pods may ask for: from its annotation to
// the spec of its container.
func TestChannelsByRequest(t *testing.T) {
	r := newRig(t, "dgx-h100", byRequest).run()
	r.list(gpus, 8, 0)
	// The first rounds have no spec of the driver.
	until(t, "the channel", func() bool { return len(r.last.Load().Inventory.Channels.Nodes) == 1 })
	start := func(name, channels string) error {
		t.Helper()
		r.create(wish(name, map[string]string{gpus: "1"}, map[string]string{wellknown.IMEXChannels: channels}))
		r.admit(name, map[string]int{gpus: 1})
		_, err := r.kubelet.StartContainer(t.Context(), "default", name, "main")
		return err
	}
	if err := start("asks", "0"); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(r.options.CDIDir, "heddle-gpu-*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("specs %q, %v", files, err)
	}
	if text, err := os.ReadFile(files[0]); err != nil || !strings.Contains(string(text), `"path":"/dev/channel0"`) {
		t.Errorf("spec %s, %v", text, err)
	}
	const want = `container main gets no IMEX channel: annotation heddle.dev/imex-channels is "1": the node has no channel 1; ` +
		"allowed on this node: all that it has, 0"
	if err := start("errs", "1"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	r.api.Wait(t, "the Event", func() bool { return has(r.api.warnings, "default/errs IMEXRejected: "+want) })
}
