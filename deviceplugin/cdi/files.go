package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

const (
	// minVersion is the lowest that allows device names which begin with a digit,
	// and hostPath. Runtimes reject specs that are newer than themselves.
	minVersion = "0.5.0"

	specPrefix = "heddle-"
	jsonSuffix = ".json"
	// perm is for containers of any user: they read what is mounted into them.
	perm = 0o644
)

// Files are where specs and the files that they mount are.
type Files struct {
	// SpecDir is a directory that runtimes watch: /var/run/cdi.
	SpecDir string
	// DeviceDir has the files that containers see as [DevicesFile]. It has the
	// same path on the host.
	DeviceDir string
	// DevRoot is where the runtime finds device nodes: /dev.
	DevRoot string
}

func specFile(n Name) string { return specPrefix + string(n.Kind) + "-" + n.Device + jsonSuffix }

// Check returns what would keep a spec from being written. A missing directory
// would be made.
func (f *Files) Check() error {
	err := unix.Access(f.SpecDir, unix.W_OK)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("CDI directory %s: %w", f.SpecDir, err)
	}
	return nil
}

// WriteDevices writes what the container sees as [DevicesFile].
func (f *Files) WriteDevices(n Name, content []byte) error {
	return hostfile.Write(f.devicesFile(n), content, perm, hostfile.Quick)
}

// WriteSpec writes the spec of a name: the environment, device nodes below /dev,
// and more edits. Driver mounts and the nodes of exclusive GPUs are in the
// driver's static spec: Allocate names its devices beside this one. The
// devices file, which the spec mounts, must be there.
func (f *Files) WriteSpec(n Name, env, nodes []string, more []*specs.ContainerEdits) error {
	return f.write(n, specs.ContainerEdits{
		Env: slices.Clone(env), DeviceNodes: f.nodes(nodes),
		Mounts: []*specs.Mount{{
			HostPath:      f.devicesFile(n),
			ContainerPath: DevicesFile,
			Options:       []string{"bind", "ro", "nosuid", "nodev", "noexec"},
		}},
	}, more)
}

// WriteClaimSpec writes the spec of a device of a claim: device nodes below /dev and more edits. It has neither
// an environment nor mounts of its own, since a container may use several devices: the hook adds the device to what
// the container is told of the others.
func (f *Files) WriteClaimSpec(
	n Name, hook string, device *Devices, nodes []string, more []*specs.ContainerEdits,
) error {
	if hook == "" {
		return fmt.Errorf("CDI spec of %s: heddle-cdi-hook is missing", n)
	}
	text, err := json.Marshal(device)
	if err != nil {
		return fmt.Errorf("CDI spec of %s: %w", n, err)
	}
	return f.write(n, specs.ContainerEdits{
		DeviceNodes: f.nodes(nodes),
		Hooks: []*specs.Hook{{
			HookName: "createRuntime", Path: hook, Args: []string{filepath.Base(hook), "devices", string(text)},
		}},
	}, more)
}

// Alone returns the edits that give what a name stands for to one container at a time; the name's file has which.
func (f *Files) Alone(n Name, hook string) *specs.ContainerEdits {
	return &specs.ContainerEdits{Hooks: []*specs.Hook{{
		HookName: "createRuntime", Path: hook, Args: []string{filepath.Base(hook), "alone", f.devicesFile(n)},
	}}}
}

// HasSpec reports whether the spec of a name is in the directory.
func (f *Files) HasSpec(n Name) bool {
	_, err := os.Stat(filepath.Join(f.SpecDir, specFile(n)))
	return err == nil
}

func (f *Files) devicesFile(n Name) string { return filepath.Join(f.DeviceDir, n.Device+jsonSuffix) }

// nodes returns device nodes below /dev.
func (f *Files) nodes(names []string) (all []*specs.DeviceNode) {
	for _, name := range names {
		d := &specs.DeviceNode{Path: "/dev/" + name, Permissions: "rw"}
		if host := filepath.Join(f.DevRoot, name); host != d.Path {
			d.HostPath = host
		}
		all = append(all, d)
	}
	return all
}

// write writes the spec of a name.
func (f *Files) write(n Name, edits specs.ContainerEdits, more []*specs.ContainerEdits) error {
	merge(&edits, more)
	spec := specs.Spec{
		Version: minVersion, Kind: vendor + "/" + string(n.Kind),
		Devices: []specs.Device{{Name: n.Device, ContainerEdits: edits}},
	}
	version, err := specs.MinimumRequiredVersion(&spec)
	if err == nil {
		spec.Version = max(minVersion, version) // Versions are single digits.
		err = hostfile.WriteJSON(filepath.Join(f.SpecDir, specFile(n)), &spec, perm, hostfile.Quick)
	}
	if err != nil {
		return fmt.Errorf("CDI spec of %s: %w", n, err)
	}
	return nil
}

// merge adds edits to edits. Nodes that several GPUs bring are there once.
func merge(into *specs.ContainerEdits, all []*specs.ContainerEdits) {
	for _, e := range all {
		into.Env = append(into.Env, e.Env...)
		into.Mounts = append(into.Mounts, e.Mounts...)
		into.Hooks = append(into.Hooks, e.Hooks...)
		into.AdditionalGIDs = append(into.AdditionalGIDs, e.AdditionalGIDs...)
		for _, node := range e.DeviceNodes {
			if !slices.ContainsFunc(into.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == node.Path }) {
				into.DeviceNodes = append(into.DeviceNodes, node)
			}
		}
	}
}

// Remove removes the files of a name.
func (f *Files) Remove(n Name) error {
	return errors.Join(
		hostfile.Remove(filepath.Join(f.SpecDir, specFile(n))),
		hostfile.Remove(f.devicesFile(n)))
}

// Sweep removes the files of devices that keep does not have, and what writes
// before a time that were cut off left.
func (f *Files) Sweep(keep map[string]bool, before time.Time) error {
	err := SweepDir(f.DeviceDir, "", jsonSuffix, keep, before)
	for _, kind := range kinds() {
		err = errors.Join(err, SweepDir(f.SpecDir, specPrefix+string(kind)+"-", jsonSuffix, keep, before))
	}
	return err
}

// Clear removes all of heddle's from the directory that runtimes watch. Containers
// that have heddle's devices cannot start again after that.
func Clear(specDir string) error {
	err := hostfile.Remove(filepath.Join(specDir, DriverFile))
	for _, kind := range kinds() {
		err = errors.Join(err, SweepDir(specDir, specPrefix+string(kind)+"-", jsonSuffix, nil, time.Now()))
	}
	return err
}

// SweepDir removes the files of a directory that are named for a device that
// keep does not have, and temporary files from before a time. Only names that
// heddle can have given go: other software has files there too.
func SweepDir(dir, prefix, suffix string, keep map[string]bool, before time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep %s: %w", dir, err)
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if hostfile.IsTemp(name) {
			if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
				errs = append(errs, hostfile.Remove(filepath.Join(dir, name)))
			}
			continue
		}
		device, ok := strings.CutPrefix(name, prefix)
		device, ended := strings.CutSuffix(device, suffix)
		if ok && ended && IsDevice(device) && !keep[device] {
			errs = append(errs, hostfile.Remove(filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}
