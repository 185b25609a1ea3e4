package cdi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

// DriverKind is the kind of the static CDI devices, and DriverFile the spec's
// name in the CDI directory. It has its own kind: two specs with one
// qualified name make both unusable, and NVIDIA's tools write nvidia.com/gpu.
const (
	DriverKind = "driver.heddle.dev/gpu"
	DriverFile = "driver.heddle.dev-gpu.json"
	// CommonDevice brings what is for every container with a GPU, and no GPU: a container whose GPU
	// is chosen late has that GPU's nodes in a separate spec, from [DriverSpec.GPUEdits].
	CommonDevice = "common"
	// commonEnv is its only edit on a node whose vendor has no variable to hide
	// devices by.
	commonEnv = "HEDDLE_GPU=cdi"
)

// generateTimeout is how long a driver may take. NVML initializes in seconds
// without the persistence daemon.
const generateTimeout = 30 * time.Second

// DriverSpec keeps the static CDI spec of the node's GPUs: the device nodes of
// each, and the driver's libraries. It changes with the driver and the GPUs;
// what one container gets besides is in its own spec.
type DriverSpec struct {
	dir       string
	generator gpu.EditsGenerator
	vendors   gpu.Vendors
	log       *slog.Logger
	// generating is the one Generate that may be under way: a call into a driver that hangs cannot be ended.
	generating bounded.Call[*gpu.Edits]

	// made identifies the input of the spec, empty if it must be made again. It is Update's alone.
	made string
	now  atomic.Pointer[driverState]
}

// driverState is the spec as it was made last. It is never changed.
type driverState struct {
	// lacks is what the node lacked then.
	lacks  error
	driver string
	// devices are the spec's, by name, and features those that come with
	// every GPU.
	devices  map[string]specs.Device
	features []string
	// channels are the nodes of IMEX channels, by number.
	channels map[int]*specs.DeviceNode
	// content is the spec's file as it was written; nil for none.
	content []byte
	problem string
}

// NewDriverSpec keeps the spec in a directory that the runtime watches. vendors
// are those of the GPUs that g makes devices for.
func NewDriverSpec(dir string, g gpu.EditsGenerator, vendors gpu.Vendors, log *slog.Logger) *DriverSpec {
	d := &DriverSpec{dir: dir, generator: g, vendors: vendors, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
	d.now.Store(&driverState{})
	return d
}

// Update is for one goroutine. It writes the spec if the driver, a GPU or a file on the node that it names
// changed since the last one, if the file is not as it was written, or if the last
// call failed. The error, which is also in [DriverSpec.Problem], means that the
// spec could not be made, and the file is as it was; or it names the GPUs that are
// not in it, and what else the node lacks.
func (d *DriverSpec) Update(ctx context.Context, m *machine.Machine) error {
	s := *d.now.Load()
	err := d.update(ctx, m, &s)
	if err != nil {
		d.made = ""
	}
	s.problem = ""
	if err = errors.Join(err, s.lacks); err != nil {
		s.problem = err.Error()
	}
	d.now.Store(&s)
	return err
}

// Problem reports what is wrong with the spec; empty if nothing is.
func (d *DriverSpec) Problem() string { return d.now.Load().problem }

// Absent reports that no spec could be made since the start: no container with a GPU
// can be created.
func (d *DriverSpec) Absent() bool {
	s := d.now.Load()
	return s.devices == nil && s.problem != ""
}

// Names returns the qualified CDI devices of GPUs, and of what comes with every GPU,
// such as GDRCopy. Devices that are not in the spec are named too: the runtime
// then reports what is missing, and the container starts once it is there.
func (d *DriverSpec) Names(ids []string) []string {
	names := slices.Concat(ids, d.now.Load().features)
	for i, id := range names {
		names[i] = DriverKind + "=" + id
	}
	return names
}

// GPUEdits returns the edits for one GPU beside [CommonDevice]: its
// device nodes. Callers must not change them. The error means that the spec has no
// such GPU, now or any more.
func (d *DriverSpec) GPUEdits(uuid string) (*specs.ContainerEdits, error) {
	s := d.now.Load()
	device, ok := s.devices[uuid]
	switch {
	case ok:
		return &device.ContainerEdits, nil
	case s.problem != "":
		return nil, fmt.Errorf("the driver's CDI spec has no GPU %s: %s", uuid, s.problem)
	}
	return nil, fmt.Errorf("the driver's CDI spec has no GPU %s", uuid)
}

// Channels returns the nodes of the IMEX channels that containers get if their pods ask for
// them, by number. Callers must not change them.
func (d *DriverSpec) Channels() map[int]*specs.DeviceNode { return d.now.Load().channels }

// update makes the spec again if needed, beginning with the last state.
func (d *DriverSpec) update(ctx context.Context, m *machine.Machine, s *driverState) error {
	// First the fingerprint: what changes meanwhile makes the next one differ.
	parts := d.partsOf(m)
	if d.made == parts {
		return d.Restore()
	}
	generated := &gpu.Edits{}
	if len(m.GPUs) > 0 {
		asking, cancel := context.WithTimeout(ctx, generateTimeout)
		defer cancel()
		var err error
		generated, err = d.generating.Do(asking, func() (*gpu.Edits, error) { return d.generator.Generate(m) })
		if err != nil {
			return fmt.Errorf("make the driver's CDI spec: %w", err)
		}
	}
	devices, features := d.complete(m, generated, s)
	content, err := encode(&generated.Common, devices)
	if err == nil {
		err = d.write(content)
	}
	if err != nil {
		return fmt.Errorf("write the driver's CDI spec: %w", err)
	}
	if !bytes.Equal(s.content, content) {
		d.log.Info("driver's CDI spec written", "devices", len(devices), "missing", len(generated.Missing))
	}
	d.made = parts
	*s = driverState{
		driver: m.DriverOf("").Version, devices: devices, features: features, content: content, channels: generated.Channels,
	}
	for _, problem := range generated.Problems {
		s.lacks = errors.Join(s.lacks, errors.New(problem))
	}
	return missing(m, generated, devices)
}

func (d *DriverSpec) path() string { return filepath.Join(d.dir, DriverFile) }

// Restore puts the spec back if it was deleted or damaged: every start of a container with GPUs needs the
// file, and Update may be a minute away.
func (d *DriverSpec) Restore() error {
	content := d.now.Load().content
	if content == nil {
		return nil
	}
	return d.write(content)
}

// write replaces the file, or removes it if the content is empty.
func (d *DriverSpec) write(content []byte) error {
	if content != nil {
		return hostfile.Write(d.path(), content, 0o644, hostfile.Durable)
	}
	return hostfile.Remove(d.path())
}

// missing are devices that pods may get and that are not in the spec.
func missing(m *machine.Machine, g *gpu.Edits, devices map[string]specs.Device) error {
	var errs []error
	for i := range m.GPUs {
		if m.GPUs[i].Health.State == machine.Lost {
			continue
		}
		for _, id := range idsOf(&m.GPUs[i]) {
			if _, there := devices[id]; !there && g.Missing[id] != "" {
				errs = append(errs, fmt.Errorf("GPU %s has no CDI device: %s", id, g.Missing[id]))
			}
		}
	}
	return errors.Join(errs...)
}

// idsOf returns the UUIDs of a GPU and of its MIG devices.
func idsOf(g *machine.GPU) []string {
	ids := []string{g.UUID}
	for i := range g.MIG.Devices {
		ids = append(ids, g.MIG.Devices[i].UUID)
	}
	return ids
}

// partsOf returns all of a machine that a spec depends on, and the files on the node.
func (d *DriverSpec) partsOf(m *machine.Machine) string {
	if len(m.GPUs) == 0 {
		return "no GPUs"
	}
	var b strings.Builder
	b.WriteString(d.generator.Fingerprint())
	fmt.Fprintf(&b, "driver %q\n", m.DriverOf("").Version)
	for i := range m.GPUs {
		g := &m.GPUs[i]
		minor := -1
		if g.Minor != nil {
			minor = *g.Minor
		}
		fmt.Fprintf(&b, "%q %d %t\n", idsOf(g), minor, g.Health.State == machine.Lost)
	}
	return b.String()
}

// complete returns the devices by name, with those of the last spec that the same
// driver did not report this time: a lost GPU's nodes are where they were.
func (d *DriverSpec) complete(m *machine.Machine, g *gpu.Edits, last *driverState) (map[string]specs.Device, []string) {
	ids := map[string]bool{}
	for i := range m.GPUs {
		for _, id := range idsOf(&m.GPUs[i]) {
			ids[id] = true
		}
	}
	devices := map[string]specs.Device{}
	var features []string
	for _, device := range g.Devices {
		devices[device.Name] = device
		if !ids[device.Name] {
			features = append(features, device.Name)
		}
	}
	if len(ids) > 0 {
		// A device must have an edit; this one is Allocate's answer.
		env := d.vendors.Present(m).HiddenEnv()
		if len(env) == 0 {
			env = []string{commonEnv}
		}
		devices[CommonDevice] = specs.Device{Name: CommonDevice, ContainerEdits: specs.ContainerEdits{Env: env}}
	}
	for name, device := range last.devices {
		if _, there := devices[name]; !there && ids[name] && last.driver == m.DriverOf("").Version {
			devices[name] = device
		}
	}
	slices.Sort(features)
	return devices, features
}

// encode makes the file; nil for no devices: a spec without devices is not valid.
func encode(common *specs.ContainerEdits, devices map[string]specs.Device) ([]byte, error) {
	if len(devices) == 0 {
		return nil, nil
	}
	spec := &specs.Spec{Kind: DriverKind, ContainerEdits: *common}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		spec.Devices = append(spec.Devices, devices[name])
	}
	// Runtimes reject specs that are newer than themselves.
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, err
	}
	spec.Version = version
	content, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return append(content, '\n'), nil
}
