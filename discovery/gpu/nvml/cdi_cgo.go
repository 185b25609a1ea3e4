//go:build cgo && linux

package nvml

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Generate implements [gpu.EditsGenerator] with NVIDIA's library for that
// (nvidia-container-toolkit, pkg/nvcdi): it knows which libraries, sockets and
// nodes each driver has, and asks NVML in a separate session. Each GPU is asked
// for separately: of several at once, one that is lost would leave the node
// without any.
func (l *Library) Generate(m *machine.Machine) (*gpu.Edits, error) {
	p := l.place()
	hook, problem := l.hook()
	lib, err := l.nvcdi(nvcdi.ModeNvml, p, hook)
	if err != nil {
		return nil, err
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("driver's libraries: %w", err)
	}
	out := &gpu.Edits{Missing: map[string]string{}}
	if problem != "" {
		out.Problems = append(out.Problems, problem)
	}
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
	l.addFeatures(out, p, hook)
	l.addChannels(out, p, m)
	if hook == "" {
		out.Common.Mounts = withSONAMEs(out.Common.Mounts, p.root)
	}
	out.Problems = append(out.Problems, lacks(&out.Common, p, hook)...)
	if err := onHost(out, p); err != nil {
		return nil, err
	}
	if l.options.Features.IMEXByPod {
		takeChannels(out)
	}
	return out, nil
}

// hook returns the CDI hook, if the host has it: a hook that is not there would keep
// every container with a GPU from starting.
func (l *Library) hook() (path, problem string) {
	looked := l.options.Hook
	switch looked {
	case "":
		return "", ""
	case gpu.AutoHook:
		path, looked = FindHook(l.options.HostRoot), strings.Join(hookPaths(), " or ")
	default:
		if _, err := os.Lstat(filepath.Join(l.options.HostRoot, looked)); err == nil {
			path = looked
		}
	}
	if path == "" {
		problem = "the host has no CDI hook " + looked +
			": install nvidia-container-toolkit; until then containers get the libraries without it"
	}
	return path, problem
}

// lacks returns the files without which no CUDA program runs in a container.
func lacks(common *specs.ContainerEdits, p place, hook string) []string {
	var problems []string
	if !slices.ContainsFunc(common.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == "/dev/nvidia-uvm" }) {
		problems = append(problems, "the node has no "+filepath.Join(p.hostDev, "dev/nvidia-uvm")+
			", without which CUDA does not start: run nvidia-modprobe -u -c=0 on it")
	}
	// The hook links the SONAME to the version.
	name := "libcuda.so.1"
	if hook != "" {
		name = "libcuda.so."
	}
	if !slices.ContainsFunc(common.Mounts, func(m *specs.Mount) bool {
		return strings.HasPrefix(path.Base(m.ContainerPath), name)
	}) {
		problems = append(problems, "containers get no libcuda.so.1: the driver below "+p.host+
			" has none that could be found or read; install the driver's compute libraries")
	}
	return problems
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
func (l *Library) addFeatures(out *gpu.Edits, p place, hook string) {
	for _, f := range []struct {
		mode   nvcdi.Mode
		wanted bool
	}{{nvcdi.ModeGdrcopy, l.options.Features.GDRCopy}, {nvcdi.ModeGds, l.options.Features.GDS}} {
		if !f.wanted {
			continue
		}
		name := string(f.mode)
		if lib, err := l.nvcdi(f.mode, p, hook); err != nil {
			out.Missing[name] = err.Error()
		} else {
			ask(out, lib, "all", name)
		}
		if reason := out.Missing[name]; reason != "" {
			out.Problems = append(out.Problems, name+" is wanted, and containers do not get it: "+reason)
		}
	}
}

// imexDevice has the IMEX channels of all containers with GPUs, and requestedEdit in their
// place where a container gets those that its pod asks for: a device must have an edit.
const (
	imexDevice    = "imex"
	requestedEdit = "HEDDLE_IMEX=annotation"
)

// addChannels makes a device of IMEX channels. Only GPUs with an NVLink domain that
// spans nodes need them, so that a node without is not a problem
// elsewhere.
func (l *Library) addChannels(out *gpu.Edits, p place, m *machine.Machine) {
	wanted := l.options.Features.IMEX
	if wanted == "" {
		return
	}
	names := []string{"*"}
	if wanted != gpu.AllChannels {
		names = strings.Split(wanted, ",")
	}
	device := specs.Device{Name: imexDevice}
	for _, name := range names {
		found, _ := filepath.Glob(filepath.Join(p.dev, "dev", imexDir, "channel"+name)) // Well-formed.
		if len(found) == 0 && slices.ContainsFunc(m.GPUs, spansNodes) {
			out.Problems = append(out.Problems, fmt.Sprintf("the node has no IMEX channel %s in %s: load the module nvidia "+
				"with NVreg_CreateImexChannel0=1", name, filepath.Join(p.hostDev, "dev", imexDir)))
		}
		for _, path := range found {
			device.ContainerEdits.DeviceNodes = append(device.ContainerEdits.DeviceNodes, &specs.DeviceNode{
				Path: filepath.Join("/dev", imexDir, filepath.Base(path)), HostPath: path, Permissions: "rw",
			})
		}
	}
	if len(device.ContainerEdits.DeviceNodes) > 0 {
		out.Devices = append(out.Devices, device)
	}
}

// takeChannels takes the channels out of their device. The device stays: containers that
// were allocated when all got the channels name it, and start again.
func takeChannels(out *gpu.Edits) {
	at := slices.IndexFunc(out.Devices, func(d specs.Device) bool { return d.Name == imexDevice })
	if at < 0 {
		return
	}
	out.Channels = map[int]*specs.DeviceNode{}
	for _, node := range out.Devices[at].ContainerEdits.DeviceNodes {
		number, err := strconv.Atoi(strings.TrimPrefix(path.Base(node.Path), "channel"))
		if err == nil {
			out.Channels[number] = node
		}
	}
	out.Devices[at].ContainerEdits = specs.ContainerEdits{Env: []string{requestedEdit}}
}

// spansNodes reports whether a GPU is in an NVLink domain of several nodes: in
// one node the fabric manager's cluster has no UUID.
func spansNodes(g machine.GPU) bool {
	return g.Fabric != nil && strings.Trim(g.Fabric.ClusterUUID, "0-") != ""
}

// memoryLimitsHook is of nvidia-container-toolkit 1.20.1 and later.
const memoryLimitsHook = "apply-cuda-memory-limits"

func (l *Library) nvcdi(mode nvcdi.Mode, p place, hook string) (nvcdi.Interface, error) {
	options := []nvcdi.Option{
		nvcdi.WithMode(mode), nvcdi.WithDriverRoot(p.root), nvcdi.WithDevRoot(p.dev),
		nvcdi.WithLibrarySearchPaths(p.libraries), nvcdi.WithLogger(cdiLog{l.options.Log}),
	}
	if hook == "" {
		options = append(options, nvcdi.WithDisabledHooks(nvcdi.AllHooks))
	} else {
		// The limits hook does nothing without a limit, and the nvidia-cdi-hook
		// of an older toolkit does not know it: no container with a GPU could
		// start. Where a limit is set, its enforcer brings the hook.
		options = append(options, nvcdi.WithNVIDIACDIHookPath(hook), nvcdi.WithDisabledHooks(memoryLimitsHook))
	}
	lib, err := nvcdi.New(options...)
	if err != nil {
		return nil, fmt.Errorf("nvcdi, mode %s: %w", mode, err)
	}
	return lib, nil
}

// onHost turns paths as this process sees them into paths as the runtime does.
func onHost(out *gpu.Edits, p place) error {
	t := root.NewDriverTransformer(
		root.WithDriverRoot(p.root), root.WithTargetDriverRoot(p.host),
		root.WithDevRoot(p.dev), root.WithTargetDevRoot(p.hostDev),
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

// searchedDirs returns the directories that nvcdi searches without being asked to.
func searchedDirs() []string {
	return []string{"usr/lib/" + triple(), "usr/lib64", "lib/" + triple(), "lib64"}
}

// place is where a driver is on this node.
type place struct {
	// root is the driver's as this process sees it, host as the container runtime does.
	root, host string
	// libraries are directories for nvcdi to search, where it would not.
	libraries []string
	// dev is the root of the device nodes: dev/nvidiactl is below it. It is the
	// driver's, or one that has the same path for the container runtime.
	dev, hostDev string
}

// place looks where the driver is now: its root may be mounted, or filled, later.
func (l *Library) place() place {
	root, name, file, err := find(l.options)
	p := place{root: filepath.Join(l.options.HostRoot, root), host: root}
	if err == nil && strings.HasPrefix(name, filepath.Join(p.root, gke)+"/") {
		p.root, p.host = filepath.Join(p.root, gke), filepath.Join(p.host, gke)
	}
	p.dev, p.hostDev = p.root, p.host
	if nodes, ok := l.hostNodes(); ok && !exists("/dev/nvidiactl", p.root) {
		p.dev, p.hostDev = nodes, nodes
	}
	// nvcdi searches some directories, and then the cache of the root's dynamic loader.
	// The names with the driver's version, by which it searches, are where the library is, which need
	// not be where its name is.
	if err == nil {
		dir, errRel := filepath.Rel(p.root, filepath.Dir(file))
		if errRel == nil && !slices.Contains(searchedDirs(), dir) {
			p.libraries = []string{filepath.Join(p.root, dir)}
		}
	}
	return p
}

// hostNodes returns the root of the host's device nodes, which nvcdi takes dev below.
func (l *Library) hostNodes() (string, bool) {
	root, ok := strings.CutSuffix(filepath.Clean(cmp.Or(l.options.DevRoot, "/dev")), "/dev")
	return cmp.Or(root, "/"), ok
}

// imexDir has the channels' nodes, below /dev.
const imexDir = gpu.ChannelsDir

// Fingerprint implements [gpu.EditsGenerator]: what nvcdi and this package look
// for on the node, and the directory of the libraries, which a package or a
// driver container may still be filling.
func (l *Library) Fingerprint() string {
	p := l.place()
	var patterns []string
	for _, name := range []string{
		"nvidia*", "nvidia-caps/*", imexDir + "/*", "gdrdrv", "dri/*",
	} {
		patterns = append(patterns, filepath.Join(p.dev, "dev", name))
	}
	for _, name := range []string{
		"run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket",
		"var/run/nvidia-persistenced/socket", "var/run/nvidia-fabricmanager/socket",
		"tmp/nvidia-mps", "run/udev", "etc/cufile.json",
	} {
		patterns = append(patterns, filepath.Join(p.root, name))
	}
	hook, _ := l.hook()
	text := gpu.Fingerprint(patterns...) + hook + "\n"
	if _, _, file, err := find(l.options); err == nil {
		if info, err := os.Stat(filepath.Dir(file)); err == nil {
			text += fmt.Sprintf("%s %d\n", file, info.ModTime().UnixNano())
		}
	}
	return text
}
