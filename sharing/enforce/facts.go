package enforce

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

// Facts decide which enforcers work on a node. An error text is empty without an
// error.
type Facts struct {
	// Driver is the driver's version, 570.86.15; empty without one.
	Driver string
	// Maker is the domain of the maker of shared GPUs for which MPS and NVIDIA's hook are
	// not made; empty for NVIDIA's.
	Maker string
	// MIG lists the UUIDs of shared GPUs with MIG on, PreVolta the UUIDs of shared GPUs before
	// Volta (compute capability under 7.0).
	MIG, PreVolta []string
	// LibraryError is the reason why the configured library cannot be preloaded.
	LibraryError string
	// MPS reports whether a [Keeper] is deployed. MPSControl is the path of
	// nvidia-cuda-mps-control below MPS's root, or empty.
	MPS        bool
	MPSControl string
	// CgroupV2 reports whether /sys/fs/cgroup is the unified hierarchy.
	CgroupV2 bool
	// Hook is the path of NVIDIA's hook on the node, HookError the reason why it cannot set
	// memory limits, RegionError why the kernel's dmem controller cannot for the GPUs of Maker.
	Hook, HookError, RegionError string
	// DriverRoot is where the driver is installed on the node.
	DriverRoot string
	// UsageError is the reason why it is not known what containers use.
	UsageError string
}

// Host is the source of facts.
type Host struct {
	// Root is the path of the node's root in this process; empty for its own root.
	// Library is sgpu.enforce.preloadLibrary.
	Root, Library string
	// Hook is nvidia-cdi-hook's path on the node, empty without, and DriverRoot where the driver is
	// installed there. OwnHook is heddle-cdi-hook's path there: it rejects a container in which the
	// pod's mounts or variables take the place of an enforcer's, and has the kernel limit memory.
	// Empty: neither.
	Hook, OwnHook, DriverRoot string
	// MPS: a [Keeper] is deployed on the node. MPSRoot is where its programs are.
	MPS     bool
	MPSRoot string
	// UsageError is as in [Facts].
	UsageError string
	// SysRoot defaults to /sys.
	SysRoot string
}

// Read reads the node; shared reports which GPUs are, nil means all. What cannot
// be read is an error text in the Facts.
func (h *Host) Read(m *machine.Machine, shared func(*machine.GPU) bool) Facts {
	f := Facts{Driver: m.Driver.Version, UsageError: h.UsageError, DriverRoot: h.DriverRoot, Hook: h.Hook}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if shared != nil && !shared(g) {
			continue
		}
		f.Maker = cmp.Or(f.Maker, g.Vendor)
		if g.MIG.Enabled {
			f.MIG = append(f.MIG, g.UUID)
		}
		if major, _, _ := strings.Cut(g.ComputeCapability, "."); major != "" {
			if n, err := strconv.Atoi(major); err == nil && n < 7 {
				f.PreVolta = append(f.PreVolta, g.UUID)
			}
		}
	}
	f.LibraryError = message(checkLibrary(h.Root, h.Library))
	if f.MPS = h.MPS; f.MPS {
		f.MPSControl = findControl(h.MPSRoot)
	}
	// Only the unified hierarchy has this file. Whether the kernel's dmem controller
	// counts there, or the driver, makes no difference here.
	_, err := os.Stat(filepath.Join(h.sysRoot(), "fs/cgroup/cgroup.controllers"))
	f.CgroupV2 = err == nil
	f.HookError = message(checkHook(h.Root, h.Hook))
	f.RegionError = message(h.checkRegions(m, shared))
	return f
}

func (h *Host) sysRoot() string { return cmp.Or(h.SysRoot, "/sys") }

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// checkLibrary opens the library: what glibc cannot load makes it complain in
// every program of a container.
func checkLibrary(root, library string) error {
	if library == "" {
		return errors.New("sgpu.enforce.preloadLibrary names no library")
	}
	if !filepath.IsAbs(library) {
		return fmt.Errorf("library %s is not an absolute path", library)
	}
	path, err := hostfile.Path(root, library)
	if err != nil {
		return fmt.Errorf("library %s: %w", library, plain(err))
	}
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("library %s: %w", library, plain(err))
	}
	defer func() { _ = f.Close() }() // It was only read.
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	switch want, known := machines[runtime.GOARCH]; {
	case f.Type != elf.ET_DYN:
		return fmt.Errorf("library %s: %s is not a shared object", library, f.Type)
	case known && f.Machine != want:
		return fmt.Errorf("library %s is for %s, the node is %s", library, f.Machine, want)
	}
	return nil
}

// plain drops the path at which the process sees a file: it is not the node's.
func plain(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

// findControl looks where drivers' packages, driver containers and the installer
// of Google's images put it.
func findControl(root string) string {
	const name = "nvidia-cuda-mps-control"
	return hostfile.Program(root, "/usr/bin/"+name, "/usr/local/nvidia/bin/"+name, "/usr/local/bin/"+name,
		"/bin/"+name, "/opt/bin/"+name, "/home/kubernetes/bin/nvidia/bin/"+name)
}

// checkHook looks into the program for the subcommand's name: nvidia-cdi-hook
// has it since 1.20.1, and an older one would fail every container's start.
// heddle starts no program of the node to find out.
func checkHook(root, hook string) error {
	if hook == "" {
		return errors.New("no nvidia-cdi-hook is given or found (--cdi-hook)")
	}
	path, err := hostfile.Path(root, hook)
	if err != nil {
		return fmt.Errorf("hook %s: %w", hook, plain(err))
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("hook %s: %w", hook, plain(err))
	}
	defer func() { _ = f.Close() }() // It was only read.
	found, err := contains(bufio.NewReader(io.LimitReader(f, 256<<20)), memoryHook)
	if err != nil {
		return fmt.Errorf("hook %s: %w", hook, plain(err))
	}
	if !found {
		return fmt.Errorf("hook %s has no %s: nvidia-container-toolkit 1.20.1 has", hook, memoryHook)
	}
	return nil
}

// contains looks for a word in a stream of bytes.
func contains(r io.Reader, word string) (bool, error) {
	buffer, kept := make([]byte, 1<<16), 0
	for {
		n, err := r.Read(buffer[kept:])
		seen := buffer[:kept+n]
		if bytes.Contains(seen, []byte(word)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		// The word may begin in the last bytes.
		kept = copy(buffer, seen[max(0, len(seen)-len(word)+1):])
	}
}
