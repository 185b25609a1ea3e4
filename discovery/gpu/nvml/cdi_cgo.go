//go:build cgo && linux

package nvml

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Generate implements [gpu.EditsGenerator] with NVIDIA's library for that
// (nvidia-container-toolkit, pkg/nvcdi): it knows which libraries, sockets and
// nodes each driver has, and asks NVML on a session of its own. Each GPU is asked
// for by itself: of several at once, one that is lost would leave the node
// without any.
func (l *Library) Generate(m *machine.Machine) (*gpu.Edits, error) {
	lib, err := l.nvcdi(nvcdi.ModeNvml)
	if err != nil {
		return nil, err
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("driver's libraries: %w", err)
	}
	out := &gpu.Edits{Missing: map[string]string{}}
	if common != nil && common.ContainerEdits != nil {
		out.Common = *common.ContainerEdits
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if g.Health.State == machine.Lost {
			out.Missing[g.UUID] = "lost"
			continue
		}
		if len(g.MIG.Devices) == 0 {
			ask(out, lib, g.UUID, g.UUID)
		}
		for j := range g.MIG.Devices {
			ask(out, lib, g.MIG.Devices[j].UUID, g.MIG.Devices[j].UUID)
		}
	}
	if err := l.addFeatures(out); err != nil {
		return nil, err
	}
	return out, l.onHost(out)
}

// ask adds the device that the library knows by an identifier.
func ask(g *gpu.Edits, lib nvcdi.Interface, id, name string) {
	devices, err := lib.GetDeviceSpecsByID(id)
	if err != nil {
		g.Missing[name] = err.Error()
		return
	}
	for _, d := range devices {
		if empty(&d.ContainerEdits) { // No valid CDI device: the host has none.
			g.Missing[name] = "the host has no nodes for it"
			continue
		}
		d.Name = name
		g.Devices = append(g.Devices, d)
	}
}

func empty(e *specs.ContainerEdits) bool {
	return len(e.DeviceNodes) == 0 && len(e.Mounts) == 0 && len(e.Hooks) == 0 && len(e.Env) == 0
}

// addFeatures makes a device, of the mode's name, for what else the host has.
func (l *Library) addFeatures(out *gpu.Edits) error {
	for mode, wanted := range map[nvcdi.Mode]bool{
		nvcdi.ModeGdrcopy: l.options.Features.GDRCopy, nvcdi.ModeGds: l.options.Features.GDS,
	} {
		if !wanted {
			continue
		}
		lib, err := l.nvcdi(mode)
		if err != nil {
			return err
		}
		ask(out, lib, "all", string(mode))
	}
	return nil
}

// memoryLimitsHook is of nvidia-container-toolkit 1.20.1 and later.
const memoryLimitsHook = "apply-cuda-memory-limits"

func (l *Library) nvcdi(mode nvcdi.Mode) (nvcdi.Interface, error) {
	options := []nvcdi.Option{
		nvcdi.WithMode(mode), nvcdi.WithDriverRoot(l.driverRoot()), nvcdi.WithLogger(cdiLog{l.options.Log}),
	}
	if l.options.Hook == "" {
		options = append(options, nvcdi.WithDisabledHooks(nvcdi.AllHooks))
	} else {
		// The limits hook does nothing without a limit, and the nvidia-cdi-hook
		// of an older toolkit does not know it: no container with a GPU could
		// start. Where a limit is set, its enforcer brings the hook.
		options = append(options, nvcdi.WithNVIDIACDIHookPath(l.options.Hook), nvcdi.WithDisabledHooks(memoryLimitsHook))
	}
	lib, err := nvcdi.New(options...)
	if err != nil {
		return nil, fmt.Errorf("nvcdi, mode %s: %w", mode, err)
	}
	return lib, nil
}

func (l *Library) driverRoot() string { return cmp.Or(l.options.DriverRoot, "/") }

// onHost turns paths as this process sees them into paths as the runtime does.
func (l *Library) onHost(out *gpu.Edits) error {
	driver := l.driverRoot()
	host := cmp.Or(l.options.HostDriverRoot, driver)
	t := root.NewDriverTransformer(
		root.WithDriverRoot(driver), root.WithTargetDriverRoot(host), root.WithDevRoot(driver), root.WithTargetDevRoot(host),
	)
	spec := &specs.Spec{ContainerEdits: out.Common, Devices: out.Devices}
	if err := t.Transform(spec); err != nil {
		return fmt.Errorf("paths on the host: %w", err)
	}
	out.Common, out.Devices = spec.ContainerEdits, spec.Devices
	return nil
}

// cdiLog takes the library's messages, which are not constant, as an attribute.
type cdiLog struct{ log *slog.Logger }

func (l cdiLog) debug(format string, args []any) {
	if l.log != nil {
		l.log.Debug("nvcdi", "text", fmt.Sprintf(format, args...))
	}
}

func (l cdiLog) Debugf(format string, args ...any)   { l.debug(format, args) }
func (l cdiLog) Errorf(format string, args ...any)   { l.debug(format, args) }
func (l cdiLog) Infof(format string, args ...any)    { l.debug(format, args) }
func (l cdiLog) Warningf(format string, args ...any) { l.debug(format, args) }
func (l cdiLog) Tracef(format string, args ...any)   { l.debug(format, args) }
