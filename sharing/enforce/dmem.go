package enforce

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// The contract of NVIDIA's hook, from nvidia-container-toolkit 1.20.1
// (cmd/nvidia-cdi-hook/apply-cuda-memory-limits, internal/discover/hooks.go).
const (
	// memoryHook is the hook's subcommand. It takes both values, in MiB, out of
	// the container's environment and sets them with NVML for the container's
	// cgroup, the same for each --gpu-id.
	memoryHook = "apply-cuda-memory-limits"
	// envMemoryLimit is the most that the cgroup may have (dmem.max).
	envMemoryLimit = "NVIDIA_GPU_MEMORY_LIMIT"
	// envMemoryRequest is the memory that is never reclaimed under pressure (dmem.min).
	// Left out it is the limit; it must not be more.
	envMemoryRequest = "NVIDIA_GPU_MEMORY_REQUEST"
)

// dmem leaves the memory limit to NVIDIA's driver (r615 and later): the driver
// counts the memory of all processes of a cgroup on a GPU, and rejects what
// exceeds the limit. The limit goes with the cgroup. For other makers' GPUs the
// kernel's controller of that name is asked itself.
type dmem struct {
	// own is heddle-cdi-hook, for GPUs with memory that the kernel counts.
	own, sysRoot string
}

func (d *dmem) edits(_ context.Context, l *Limit, s *settings) (*cdi.ContainerEdits, error) {
	if l.GPUs[0].Maker != "" {
		return d.regionEdits(l)
	}
	if s.hook == "" {
		return nil, errors.New("dmem: the host has no nvidia-cdi-hook any more")
	}
	limit := l.GPUs[0].Share.MemoryMiB
	var hooks []*cdi.Hook
	for i := range l.GPUs {
		c := &l.GPUs[i]
		if c.Share.MemoryMiB != limit {
			return nil, fmt.Errorf("dmem: one container with %d MiB of GPU %d and %d MiB of GPU %d: "+
				"NVIDIA's hook knows one limit per container",
				limit, l.GPUs[0].Index, c.Share.MemoryMiB, c.Index)
		}
		// One for each GPU, spelled exactly as nvcdi does in a driver's spec, so
		// that a component that merges both can drop the second one.
		hooks = append(hooks, &cdi.Hook{
			// createRuntime runs on the host, when the cgroup exists and no process of the
			// container runs yet.
			HookName: "createRuntime", Path: s.hook,
			Args: []string{filepath.Base(s.hook), memoryHook, "--driver-root", s.driverRoot, "--gpu-id", c.Share.UUID},
			Env:  []string{"NVIDIA_CTK_DEBUG=false"},
		})
	}
	// The node accounts for every share of a GPU, so it can be guaranteed;
	// best-effort gives way.
	request := limit
	if l.Policy == quota.BestEffort {
		request = 0
	}
	return &cdi.ContainerEdits{
		Env: []string{
			envMemoryLimit + "=" + strconv.FormatInt(limit, 10),
			envMemoryRequest + "=" + strconv.FormatInt(request, 10),
		},
		Hooks: hooks,
	}, nil
}

// capacityFile is the root cgroup's file of the kernel's dmem controller (Linux 6.14,
// Documentation/admin-guide/cgroup-v2.rst): a line for each region, its name and bytes.
const capacityFile = "fs/cgroup/dmem.capacity"

// regions returns the memories of DRM devices that the kernel's dmem controller counts, by PCI
// address: drm/0000:03:00.0/vram. amdgpu calls its own vram, others vram0.
func regions(sysRoot string) (map[string]string, error) {
	f, err := os.Open(filepath.Join(sysRoot, capacityFile))
	if err != nil {
		return nil, errors.New("the kernel has no dmem controller (/sys/" + capacityFile + ", Linux 6.14 or later)")
	}
	defer func() { _ = f.Close() }() // It was only read.
	all := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, _, _ := strings.Cut(lines.Text(), " ")
		parts := strings.Split(name, "/")
		if len(parts) == 3 && parts[0] == "drm" && strings.HasPrefix(parts[2], "vram") && all[parts[1]] == "" {
			all[parts[1]] = name
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read /sys/%s: %w", capacityFile, err)
	}
	return all, nil
}

// checkRegions returns why the kernel cannot limit the memory of shared GPUs of vendors other than
// NVIDIA; nil without such GPUs.
func (h *Host) checkRegions(m *machine.Machine, shared func(*machine.GPU) bool) error {
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if g.Vendor == "" || shared != nil && !shared(g) {
			continue
		}
		all, err := regions(h.sysRoot())
		switch {
		case h.OwnHook == "":
			return errors.New("heddle-cdi-hook is not in the state directory, or that is mounted noexec")
		case err != nil:
			return err
		case all[g.PCI] == "":
			return fmt.Errorf("the driver of GPU %d counts nothing with the kernel's dmem controller (no drm/%s in /sys/%s)",
				g.Index, g.PCI, capacityFile)
		}
	}
	return nil
}

// regionEdits have the kernel limit the container's cgroup. Limits apply to a region, so shares may
// differ; what a region is short of the kernel moves to the host's memory or rejects, as the
// GPU's driver has it.
func (d *dmem) regionEdits(l *Limit) (*cdi.ContainerEdits, error) {
	all, err := regions(d.sysRoot)
	if err != nil {
		return nil, fmt.Errorf("dmem: %w", err)
	}
	var limits []string
	for i := range l.GPUs {
		region := all[l.GPUs[i].PCI]
		if region == "" || d.own == "" {
			return nil, fmt.Errorf("dmem: the kernel does not count the memory of GPU %d any more", l.GPUs[i].Index)
		}
		limits = append(limits, region+"="+strconv.FormatInt(l.GPUs[i].Share.MemoryMiB<<20, 10))
	}
	return &cdi.ContainerEdits{Hooks: []*cdi.Hook{ownHook(d.own, "dmem", limits)}}, nil
}
