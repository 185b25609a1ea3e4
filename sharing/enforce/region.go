package enforce

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
)

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

// regionEdits have the kernel limit the container's cgroup. Limits are by region, so shares may
// differ; what a region is short of the kernel moves to the host's memory or rejects, as the
// GPU's driver has it.
func (d *dmem) regionEdits(l *Limit) (*cdi.ContainerEdits, error) {
	all, err := regions(d.sysRoot)
	if err != nil {
		return nil, fmt.Errorf("dmem: %w", err)
	}
	hook := &cdi.Hook{HookName: "createRuntime", Path: d.own, Args: []string{filepath.Base(d.own), "dmem"}}
	for i := range l.GPUs {
		region := all[l.GPUs[i].PCI]
		if region == "" || d.own == "" {
			return nil, fmt.Errorf("dmem: the kernel does not count the memory of GPU %d any more", l.GPUs[i].Index)
		}
		hook.Args = append(hook.Args, region+"="+strconv.FormatInt(l.GPUs[i].Share.MemoryMiB<<20, 10))
	}
	return &cdi.ContainerEdits{Hooks: []*cdi.Hook{hook}}, nil
}
