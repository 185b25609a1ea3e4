package agent

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/connectivity"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// hung is a driver that never answers.
type hung struct{ end <-chan struct{} }

func (h hung) Generate(*machine.Machine) (*devgpu.Edits, error) {
	<-h.end
	return nil, errors.New("ended")
}

func (hung) Fingerprint() string { return "" }

func TestNothingSlowHoldsBackTheList(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.api.Hang = true
	r.run()
	// The first registration waits a second for the API server, once.
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	slow := newRig(t, "dgx-h100", func(o *Options) { o.Generator = hung{end} }).run()
	slow.list(hcas, 512, 0)
	if got := slow.Ready(); got != gpus+": waits for the driver's CDI spec" {
		t.Errorf("Ready is %q", got)
	}
	for _, r := range []*rig{r, slow} {
		port := func(state string) func(*machine.Machine) {
			return func(m *machine.Machine) {
				at := slices.IndexFunc(m.HCAs, func(h machine.HCA) bool { return h.Role == machine.RoleFabric })
				m.HCAs[at].Ports[0].State = state
			}
		}
		r.configure("health: {downAfter: 0s}")
		r.alter(port(machine.PortDown))
		r.list(hcas, 448, 64)
	}
}

// training is a node with a pod on it, and what that has.
func training(t *testing.T) (*rig, []report.Binding) {
	t.Helper()
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	r.admit("train", map[string]int{gpus: 2, hcas: 2})
	r.start("train")
	return r, r.report().Bindings
}

func TestKubeletThatRestarts(t *testing.T) {
	r, before := training(t)
	r.kubelet.Restart()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	r.start("train")
	if diff := cmp.Diff(before, r.report().Bindings); diff != "" {
		t.Errorf("other devices after the restart:\n%s", diff)
	}
}

// A kubelet that comes late, after attempts to reach it have failed, gets GPUs
// as soon as it answers.
func TestLateKubelet(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.kubelet.Stop()
	r.run()
	for state := r.conn.GetState(); state != connectivity.TransientFailure; state = r.conn.GetState() {
		if !r.conn.WaitForStateChange(t.Context(), state) {
			t.Fatal("PodResources was never looked for")
		}
	}
	r.kubelet.Up()
	r.list(hcas, 512, 0)
	r.list(gpus, 8, 0)
}
