package enforce

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/sharing/quota"
)

// HAMi-core's contract (src/multiprocess/multiprocess_memory_limit.c), which
// other libraries of the kind follow.
const (
	// envDeviceMemory_<i> is "4096m" for the container's i-th GPU. 0, or what
	// does not parse, is no limit.
	envDeviceMemory = "CUDA_DEVICE_MEMORY_LIMIT"
	// envDeviceSM is percent for all GPUs, envDeviceSM_<i> for one. 100 is no
	// limit, and 0 too.
	envDeviceSM = "CUDA_DEVICE_SM_LIMIT"
	// envRegion is the file that the container's processes share.
	envRegion = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
	// envPolicy selects when the compute limit holds: force always, default as the
	// library sees fit, disable never.
	envPolicy = "GPU_CORE_UTILIZATION_POLICY"
	// envDisable turns the library off, and envOversubscribe lets it lend host
	// memory beyond the limit: a pod could set either.
	envDisable       = "CUDA_DISABLE_CONTROL"
	envOversubscribe = "CUDA_OVERSUBSCRIBE"
)

// Where a container has the parts.
const (
	containerLibrary = "/usr/local/vgpu/libvgpu.so"
	containerRegion  = "/usr/local/vgpu/region"
	regionFile       = "region.cache"
	// preloadList is read by glibc's dynamic loader, for every program.
	preloadList = "/etc/ld.so.preload"
	// overrideFile is a list of environment variables that HAMi-core has a
	// reader for (ENV_OVERRIDE_FILE), against shells that drop them.
	overrideFile = "/overrideEnv"
	// lockDir serializes libraries before August 2026 on a node. Without it each
	// start of a process waits for seconds.
	lockDir = "/tmp/vgpulock"
)

// preload puts the administrator's library before the driver's.
type preload struct {
	// library is its path on the node, hostRoot where the process sees the node's
	// files, dir the state directory, with the same path on the node.
	library, hostRoot, dir string

	mu sync.Mutex // guards the files and what follows
	// copied is the version that was made of the source as it was.
	copied string
	source fileState
}

func (p *preload) edits(_ context.Context, l *Limit, what aspects) (*Edits, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	version, err := p.version()
	if err != nil {
		return nil, fmt.Errorf("preload: %w", err)
	}
	env := preloadEnv(l, what)
	override, region, err := p.prepareFiles(l, version, env)
	if err != nil {
		return nil, fmt.Errorf("preload: %w", err)
	}
	return &Edits{
		Env: env,
		Mounts: []*cdi.Mount{
			mount(p.versionFile(version), containerLibrary, "ro", "nosuid", "nodev"),
			mount(p.listFile(), preloadList, "ro", "nosuid", "nodev", "noexec"),
			mount(override, overrideFile, "ro", "nosuid", "nodev", "noexec"),
			mount(region, containerRegion, "rw", "nosuid", "nodev", "noexec"),
			mount(p.lockDir(), lockDir, "rw", "nosuid", "nodev", "noexec"),
		},
	}, nil
}

func mount(host, container string, options ...string) *cdi.Mount {
	return &cdi.Mount{HostPath: host, ContainerPath: container, Options: append([]string{"bind"}, options...)}
}

// preloadEnv sets every key that lifts a limit if a pod sets it, also those whose
// value is the default: CDI's environment replaces the pod's.
func preloadEnv(l *Limit, what aspects) []string {
	env := []string{
		envDisable + "=false", envOversubscribe + "=false",
		envRegion + "=" + filepath.Join(containerRegion, regionFile),
	}
	least, same := quota.Whole, true
	for i := range l.GPUs {
		c := &l.GPUs[i]
		if what.memory {
			env = append(env, fmt.Sprintf("%s_%d=%dm", envDeviceMemory, i, c.Share.MemoryMiB))
		}
		percent := smPercent(c, what)
		least = min(least, percent)
		same = same && percent == smPercent(&l.GPUs[0], what)
	}
	if !what.memory {
		// The library reads these before it looks for a default: empty is none.
		env = append(env, envDeviceMemory+"=")
	}
	env = append(env, envDeviceSM+"="+strconv.Itoa(least))
	for i := range l.GPUs {
		if !same {
			env = append(env, fmt.Sprintf("%s_%d=%d", envDeviceSM, i, smPercent(&l.GPUs[i], what)))
		}
	}
	return append(env, envPolicy+"="+policyWord(l.Policy, what))
}

// smPercent is the library's compute limit of a GPU. It is the vcore also where
// the policy lets a container exceed it, since the library decides that.
func smPercent(c *GPU, what aspects) int {
	if !what.compute {
		return quota.Whole
	}
	return min(cmp.Or(max(c.Share.VCore, 0), quota.Whole), quota.Whole)
}

// policyWord is HAMi-core's name of the policy.
func policyWord(policy quota.Policy, what aspects) string {
	switch {
	case !what.compute || policy == quota.BestEffort:
		return "disable"
	case policy == quota.BurstShare:
		return "default"
	}
	return "force"
}
